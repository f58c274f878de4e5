"""mteb's search index: exact ids whatever the batch or the order of adding."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kgfast.adapters import mteb as adapter
from kgfast.adapters.mteb import KgfastSearchIndex
from support.overlay import run_tests_with

DOCUMENTS, QUERIES, DIM = 211, 13, 16
NAMES = [f"d{row}" for row in range(DOCUMENTS)]


def corpus(dtype=np.float32):
    generator = np.random.default_rng(0)
    documents = generator.standard_normal((DOCUMENTS, DIM)).astype(dtype)
    documents[7], documents[100] = 0, documents[3]  # no direction; a tie
    queries = generator.standard_normal((QUERIES, DIM)).astype(dtype)
    queries[2] = documents[3]
    return documents, queries


def expected(similarity, documents, queries):
    """Scores in float64, and the ids in their order; the lowest first among equals."""
    documents, queries = documents.astype(np.float64), queries.astype(np.float64)
    if similarity == "cosine":
        documents, queries = (
            (it / np.maximum(np.sqrt((it * it).sum(1, keepdims=True)), 1e-300))
            .astype(np.float32)
            .astype(np.float64)
            for it in (documents, queries)
        )
    differences = queries[:, None] - documents
    scores = {
        "euclidean": lambda: -np.sqrt((differences**2).sum(-1)),
        "manhattan": lambda: -np.abs(differences).sum(-1),
    }.get(similarity, lambda: (queries[:, None] * documents).sum(-1))()
    return scores, np.argsort(-scores, 1, kind="stable")


def made(similarity="cosine", size=DOCUMENTS, documents=None):
    index = KgfastSearchIndex(None, similarity=similarity)
    documents = corpus()[0] if documents is None else documents
    names = NAMES[: len(documents)]
    for first in range(0, len(documents), size):
        index.add_documents(documents[first : first + size], names[first : first + size])
    return index


@pytest.mark.parametrize("similarity", adapter.SIMILARITIES)
def test_ids_are_those_of_brute_force(similarity, backend):
    documents, queries = corpus()
    scores, order = expected(similarity, documents, queries)
    index = made(similarity, 80)
    found = index.search(queries, 20, None)
    assert found[1] == order[:, :20].tolist()
    np.testing.assert_allclose(found[0], np.take_along_axis(scores, order, 1)[:, :20], atol=1e-6)


def test_scores_are_the_same_bits_in_any_batch():
    _, queries = corpus()
    whole = made().search(queries, 9, None)
    assert made(size=17).search(queries, 9, None) == whole
    index = made()
    rows = [index.search(queries[row : row + 1], 9, None) for row in range(QUERIES)]
    assert tuple([it[part][0] for it in rows] for part in range(2)) == whole
    assert index.search(queries, 4, None)[1] == [ids[:4] for ids in whole[1]]
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        assert index.search(queries, 9, None) == whole
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_other_dtypes(dtype):
    documents, queries = (np.round(4 * it).astype(dtype) for it in corpus())
    found = made("dot", documents=documents).search(queries, 5, None)
    assert found[1] == expected("dot", documents, queries)[1][:, :5].tolist()
    assert found[0] == np.sort(expected("dot", documents, queries)[0])[:, :-6:-1].tolist()


def test_reranking_gives_places_in_the_lists():
    documents, queries = corpus()
    generator = np.random.default_rng(1)
    lists = {
        f"q{row}": [NAMES[it] for it in generator.permutation(DOCUMENTS)[: 3 * row]]
        for row in range(QUERIES)
    }
    ids = {row: f"q{row}" for row in range(QUERIES)}
    scores, places = made().search(queries, 6, None, lists, ids)
    all_scores, order = expected("cosine", documents, queries)
    for row in range(QUERIES):
        own = [int(it[1:]) for it in lists[f"q{row}"]]
        best = [it for it in order[row] if it in own][:6]
        assert [own[place] for place in places[row]] == best
        np.testing.assert_allclose(scores[row], all_scores[row][best], atol=1e-6)


def test_the_model_says_its_similarity():
    for name in ("cosine", "euclidean"):
        for value in (name, SimpleNamespace(value=name)):
            meta = SimpleNamespace(similarity_fn_name=value)
            assert KgfastSearchIndex(SimpleNamespace(mteb_model_meta=meta)).similarity == name
    with pytest.raises(ValueError, match="similarity must be one of cosine, dot, euclidean, manha"):
        KgfastSearchIndex(SimpleNamespace(mteb_model_meta=None))


def with_a(value):
    documents = corpus()[0].copy()
    documents[60, 3] = value
    return documents


BAD = {
    "nan": (with_a(np.nan), ValueError, "embeddings: row 60 of 211 holds a NaN or an infinity"),
    "infinity": (with_a(-np.inf), ValueError, "embeddings: row 60 of 211 holds"),
    "width": (np.ones((211, 3), np.float32), ValueError, "must have 16 columns, as .*; got 3"),
    "axes": (np.ones(211, np.float32), ValueError, r"must have shape \[n, D\]; got \[211\]"),
    "dtype": (np.ones((211, DIM)), TypeError, "must be torch.float32, as earlier ones; got .*64"),
    "integers": (np.ones((211, DIM), np.int64), TypeError, "floating point, int8 or uint8; got"),
    "list": ([[1.0] * DIM] * 211, TypeError, "embeddings must be a tensor or an array; got list"),
}


@pytest.mark.parametrize("name", BAD)
def test_documents_that_do_not_fit_are_named(name):
    documents, error, message = BAD[name]
    index, whole = made(), made().search(corpus()[1], 3, None)
    with pytest.raises(error, match=message):
        index.add_documents(documents, NAMES)
    assert index.search(corpus()[1], 3, None) == whole


def test_calls_that_do_not_fit_are_named():
    index, queries = made(), corpus()[1]
    with pytest.raises(ValueError, match="idxs must have 211 ids, one a row; got 2"):
        index.add_documents(corpus()[0], ["a", "b"])
    with pytest.raises(ValueError, match="k must be at least 1; got 0"):
        index.search(queries, 0, None)
    with pytest.raises(ValueError, match="must have 16 columns, as the documents have; got 15"):
        index.search(queries[:, 1:], 3, None)
    with pytest.raises(ValueError, match="query_idx_to_id must be given with top_ranked"):
        index.search(queries, 3, None, {})
    ids = {row: "q" for row in range(QUERIES)}
    with pytest.raises(ValueError, match="must name documents that were added; got 'x'"):
        index.search(queries, 3, None, {"q": ["d1", "x"]}, ids)
    with pytest.raises(ValueError, match="there are no documents: add embeddings before"):
        KgfastSearchIndex(None, similarity="dot").search(queries, 3, None)


def real_task(top_ranked=None):
    """Return a task of mteb that downloads nothing."""
    datasets = pytest.importorskip("datasets")
    tasks = pytest.importorskip("mteb.abstasks")
    described = pytest.importorskip("mteb.abstasks.task_metadata")
    nothing = ("reference", "date", "domains", "task_subtypes", "license", "bibtex_citation")
    nothing += ("annotations_creators", "dialect", "sample_creation")

    class Tiny(tasks.AbsTaskRetrieval):
        metadata = described.TaskMetadata(
            name="Tiny",
            description="documents that are numbers",
            dataset={"path": "none/none", "revision": "1"},
            type="Retrieval" if top_ranked is None else "Reranking",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            **dict.fromkeys(nothing),
        )

        def load_data(self, *args, **kwargs):
            texts = [f"document {row} " * (row % 7 + 1) for row in range(DOCUMENTS)]
            split = {
                "corpus": datasets.Dataset.from_dict(
                    {"id": NAMES, "title": [""] * DOCUMENTS, "text": texts}
                ),
                "queries": datasets.Dataset.from_dict(
                    {
                        name: [f"{word}{row}" for row in range(QUERIES)]
                        for name, word in (("id", "q"), ("text", "query "))
                    }
                ),
                "relevant_docs": {
                    f"q{row}": {f"d{row}": 1, f"d{3 * row}": 1} for row in range(QUERIES)
                },
                "top_ranked": top_ranked,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Tiny()


@pytest.mark.parametrize("is_reranked", [False, True])
def test_real_mteb_finds_what_its_own_search_finds(is_reranked, tmp_path):
    mteb = pytest.importorskip("mteb")
    from mteb.models import SearchEncoderWrapper

    lists = {f"q{row}": NAMES[row : row + 90] for row in range(QUERIES)} if is_reranked else None
    model = mteb.get_model("mteb/baseline-random-encoder")
    index = KgfastSearchIndex(model)
    runs = [
        mteb.evaluate(
            it,
            real_task(lists),
            cache=None,
            overwrite_strategy="always",
            encode_kwargs={"show_progress_bar": False},
            prediction_folder=tmp_path / str(number),
        )
        for number, it in enumerate((model, SearchEncoderWrapper(model, index_backend=index)))
    ]
    scores = [it.task_results[0].scores["test"][0] for it in runs]
    assert {name: it for name, it in scores[0].items() if it == it} == {
        name: it for name, it in scores[1].items() if it == it
    }
    assert scores[0]["recall_at_100"] > 0


def test_real_protocol_is_that_of_the_index():
    pytest.importorskip("mteb")
    import inspect

    from mteb.models import IndexEncoderSearchProtocol

    for name in ("add_documents", "search", "clear"):
        theirs = inspect.signature(getattr(IndexEncoderSearchProtocol, name)).parameters
        assert list(theirs) == list(inspect.signature(getattr(KgfastSearchIndex, name)).parameters)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_with_mteb_itself(tmp_path):
    run_tests_with(tmp_path / "venv", str(Path(__file__)), "mteb>=2")
