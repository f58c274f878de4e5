"""beir's exact search: results of its own class, with ties in order and no matrix of scores."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kgfast.adapters.beir import KgfastExactSearch
from support.overlay import run_tests_with

DOCUMENTS, QUERIES, DIM = 150, 9, 8


class Encoder:
    """An encoder whose embeddings are a function of the text."""

    def __init__(self, as_tensor=True):
        self.as_tensor, self.calls = as_tensor, []

    def encode_queries(self, queries, batch_size=16, **options):
        return self._encoded(queries)

    def encode_corpus(self, corpus, batch_size=8, **options):
        assert options == {"show_progress_bar": False, "convert_to_tensor": self.as_tensor}
        self.calls.append(len(corpus))
        return self._encoded([it["text"] for it in corpus])

    def _encoded(self, texts):
        rows = [np.random.default_rng([*text.encode()]).standard_normal(DIM) for text in texts]
        found = np.array(rows, np.float32)
        return torch.from_numpy(found) if self.as_tensor else found


def corpus():
    """Documents of several lengths; some texts stand twice, and queries 0 to 3 are documents."""
    texts = [f"{row % 140} " * (1 + row % 5) for row in range(DOCUMENTS)]
    return {f"q{row}" if row < 4 else f"d{row}": {"text": it} for row, it in enumerate(texts)}


def queries():
    return {f"q{row}": f"{row} " * (1 + row % 5) for row in range(QUERIES)}


def search(model=None, **options):
    return KgfastExactSearch(model or Encoder(), show_progress_bar=False, **options)


def expected(similarity, keeps_own=False):
    documents, asked = corpus(), queries()
    order = sorted(documents, key=lambda it: len(documents[it]["text"]), reverse=True)
    rows = Encoder()._encoded([documents[it]["text"] for it in order]).numpy().astype(np.float64)
    for name, text in asked.items():
        row = Encoder()._encoded([text]).numpy().astype(np.float64)[0]
        scores = rows @ row
        if similarity == "cos_sim":
            scores /= np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
        # Equal texts have equal rows; rounding hides what a product leaves of their order.
        best = np.argsort(-scores.round(9), kind="stable")
        yield name, {order[it]: scores[it] for it in best if keeps_own or order[it] != name}


@pytest.mark.parametrize("similarity", ["cos_sim", "dot"])
@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.parametrize("options", [{}, {"corpus_chunk_size": 40, "max_memory": 600}])
def test_results_are_those_of_brute_force(similarity, as_tensor, options):
    model = Encoder(as_tensor)
    found = search(model, convert_to_tensor=as_tensor, **options).search(
        corpus(), queries(), 12, similarity
    )
    for name, scores in expected(similarity):
        assert list(found[name]) == list(scores)[:12]
        assert list(found[name].values()) == pytest.approx(list(scores.values())[:12], abs=1e-6)
    assert model.calls == ([40, 40, 40, 30] if options else [150])


def test_files_give_the_same(tmp_path):
    own = search(corpus_chunk_size=40)
    own.encode(corpus(), queries(), str(tmp_path))
    files = sorted(tmp_path.glob("corpus.*.pkl"), reverse=True)
    assert len(files) == 4
    found = own.search_from_files(str(tmp_path / "queries.pkl"), list(map(str, files)), 12)
    assert found == own.results
    for name, scores in expected("dot", keeps_own=True):
        assert list(found[name]) == list(scores)[:12]
    calls = len(own.model.calls)
    own.encode(corpus(), queries(), str(tmp_path))
    assert len(own.model.calls) == calls
    own.encode(corpus(), queries(), str(tmp_path), overwrite=True)
    assert len(own.model.calls) == calls + 4


class Broken(Encoder):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def encode_corpus(self, corpus, **options):
        return self.change(super().encode_corpus(corpus, **options))


def no_number(rows):
    rows[17, 2] = torch.nan
    return rows


def test_calls_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match="score_function must be one of cos_sim, dot; got 'l2'"):
        search().search(corpus(), queries(), 3, "l2")
    with pytest.raises(ValueError, match="embeddings: row 17 of 150 holds a NaN or an infinity"):
        search(Broken(no_number)).search(corpus(), queries(), 3, "dot")
    with pytest.raises(ValueError, match="encode_corpus must give 150 rows; got 149"):
        search(Broken(lambda it: it[1:])).search(corpus(), queries(), 3, "dot")
    with pytest.raises(ValueError, match="corpus_chunk_size must be at least 1; got 0"):
        search(corpus_chunk_size=0)
    with pytest.raises(ValueError, match="top_k must be at least 1; got 0"):
        search().search(corpus(), queries(), 0, "dot")
    with pytest.raises(ValueError, match="there are no documents"):
        search().search({}, queries(), 3, "dot")
    with pytest.raises(FileNotFoundError, match=r"none\.pkl: no such file"):
        search().search_from_files(str(tmp_path / "none.pkl"), [], 3)
    (tmp_path / "theirs.pkl").write_bytes(b"\x80\x04N.")
    with pytest.raises(ValueError, match=r"theirs.pkl: not written by KgfastExactSearch.encode"):
        search().search_from_files(str(tmp_path / "theirs.pkl"), [], 3)


@pytest.mark.parametrize("similarity", ["cos_sim", "dot"])
def test_real_beir_scores_the_same(similarity):
    evaluation = pytest.importorskip("beir.retrieval.evaluation")
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    relevant = {f"q{row}": {f"d{row + 4}": 1, f"d{3 * row + 4}": 2} for row in range(QUERIES)}
    scores, found = [], []
    for own in (
        DenseRetrievalExactSearch(Encoder(), show_progress_bar=False),
        search(),
    ):
        retriever = evaluation.EvaluateRetrieval(own, [1, 3, 10], score_function=similarity)
        found.append(retriever.retrieve(corpus(), queries()))
        scores.append(retriever.evaluate(relevant, found[-1], retriever.k_values))
    theirs, ours = found
    for name in ours:
        assert sorted(ours[name].values()) == pytest.approx(sorted(theirs[name].values()), abs=1e-5)
    assert scores[0] == scores[1]


def test_real_beir_encodes_and_retrieves(tmp_path):
    evaluation = pytest.importorskip("beir.retrieval.evaluation")
    retriever = evaluation.EvaluateRetrieval(search(), [1, 3, 10], score_function="dot")
    found = retriever.encode_and_retrieve(corpus(), queries(), encode_output_path=str(tmp_path))
    for name, scores in expected("dot", keeps_own=True):
        assert list(found[name]) == list(scores)[:10]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_with_beir_itself(tmp_path):
    run_tests_with(tmp_path / "venv", str(Path(__file__)), "beir>=2.1")
