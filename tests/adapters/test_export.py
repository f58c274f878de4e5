"""Files for other programs: equal scores there, or an error that says why not."""

import pytest
import torch

import kgfast
from kgfast import CP, MED, RSCF, ComplEx, ConvE, DistMult, Reciprocal, RotatE, TransE
from kgfast.adapters.export import export_run
from kgfast.datasets import synthetic
from kgfast.graph import Vocabulary
from kgfast.training import LoadedRun
from kgfast.training.loading import Vocabularies
from support.small_runs import ring_trainer, write_ring

N, R, DIM = 30, 4, 8
GRAPH = synthetic(N, R, 90, 10, 10)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("export")
    write_ring(root / "ring")
    return ring_trainer(root, None).config


def run_of(model, config, names=None):
    names = [f"entity {i}" for i in range(model.num_entities)] if names is None else names
    relations = Vocabulary([f"relation {i}" for i in range(model.num_relations)])
    return LoadedRun(model, Vocabularies(Vocabulary(names), relations), None, config)


def ranks(model):
    triples = [(h, r, (h + r + 1) % N) for h in range(N) for r in range(R)]
    found = kgfast.rank(model, triples)
    return found.greater, found.equal


def same_ranks(first, second):
    return all(torch.equal(a, b) for a, b in zip(ranks(first), ranks(second), strict=True))


class TestOfficial:
    @pytest.mark.parametrize(
        "model",
        [
            RotatE.init(N, R, DIM, gamma=6.1, seed=0),
            RotatE.init(N, R, DIM, layout="interleaved", seed=0),
            TransE.init(N, R, DIM, seed=0),
            DistMult.init(N, R, DIM, seed=0),
            ComplEx.init(N, R, DIM, seed=0),
            ComplEx.init(N, R, DIM, layout="interleaved", seed=0),
            MED(RotatE.init(N, R, DIM, seed=0), [2, DIM]),
            RotatE.init(N, R, DIM, seed=0).to(torch.float16),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("kept", ["checkpoint", "arrays"])
    def test_it_is_read_back_bit_equal(self, tmp_path, config, model, kept):
        export_run(run_of(model, config), "official", tmp_path / "out")
        if kept == "arrays":
            (tmp_path / "out" / "checkpoint").unlink()
        again = kgfast.load_official(tmp_path / "out")
        assert same_ranks(model, again)
        inner = model.model if isinstance(model, MED) else model
        assert again.dim == inner.dim
        if getattr(inner, "layout", "halves") == "halves":
            assert torch.equal(again.entity, inner.entity.float())
            assert torch.equal(again.relation, inner.relation.float())

    @pytest.mark.parametrize("name", ["a\tb", "a\nb", " a", "a ", "", "a\r"])
    def test_names_that_its_lines_cannot_hold(self, tmp_path, config, name):
        names = [f"e{i}" for i in range(N - 1)] + [name]
        with pytest.raises(
            ValueError, match=r"the name '.*' does not fit the official RotatE code"
        ):
            export_run(run_of(DistMult.init(N, R, DIM), config, names), "official", tmp_path / "o")

    def test_rows_without_names_have_no_file(self, tmp_path):
        model = DistMult.init(N, R, DIM)
        kgfast.save(model, tmp_path / "saved", relations=[f"r{i}" for i in range(R)])
        files = export_run(kgfast.load_run(tmp_path / "saved"), "official", tmp_path / "out")
        assert [path.name for path in files if path.suffix == ".dict"] == ["relations.dict"]


class Moved(TransE):
    """A model of the user's own, with a score of its own."""

    def _queries(self, *given):
        return super()._queries(*given) + 1.0


CONVE = ConvE.init(N, R, DIM, embedding_height=2, kernel_size=2)
PHASES = RotatE(torch.randn(N, 2 * DIM), torch.randn(R, DIM), relation_format="phase")
INVERSES = Reciprocal(DistMult.init(N, 2 * R, DIM), "appended")
REFUSED = [
    ("official", RotatE.init(N, R, DIM, norm="l2"), "norm='l2' .* with model.norm: modulus"),
    ("official", TransE.init(N, R, DIM, norm="l2"), "norm='l2' .* with model.norm: l1 can"),
    ("official", PHASES, "relation_format='phase' does not fit the official"),
    ("official", RSCF(RotatE.init(N, R, DIM)), "RSCF does not fit the official Rot"),
    ("official", CONVE, "ConvE does not fit .* --to safetensors"),
    ("official", DistMult.init(N, R, DIM).double(), "DistMult with float64 tables does not fit"),
    ("official", INVERSES, "DistMult with reciprocal relations does not fit the official"),
    ("official", CP.init(N, R, DIM), "CP does not fit .*: try --to safetensors"),
    ("official", Moved.init(N, R, DIM), "Moved does not fit .*: it scores by more"),
    ("safetensors", Moved.init(N, R, DIM), "model must be RotatE, .*; got Moved"),
]


@pytest.mark.parametrize(("to", "model", "why"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_target_lacks_is_refused(tmp_path, config, to, model, why):
    with pytest.raises((ValueError, TypeError), match=why):
        export_run(run_of(model, config), to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_written_into(tmp_path, config):
    run = run_of(DistMult.init(N, R, DIM), config)
    (tmp_path / "empty").mkdir()
    export_run(run, "official", tmp_path / "empty")
    with pytest.raises(ValueError, match="is there already: name another folder"):
        export_run(run, "official", tmp_path / "empty")
    with pytest.raises(ValueError, match="to must be one of safetensors, official"):
        export_run(run, "onnx", tmp_path / "b")
