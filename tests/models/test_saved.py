"""Models saved as folders: they come back with the same integers, or an error says why."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import kgfast
from kgfast import CP, MED, RESCAL, RSCF, ComplEx, ConvE, DistMult, Reciprocal, RotatE, TransE
from kgfast.tables import Rows, files
from support.small_runs import RING, ring_trainer, write_ring

N, R, DIM = 30, 4, 8
ENTITIES, RELATIONS = [f"e{i}" for i in range(N)], [f"r{i}" for i in range(R)]
TRIPLES = torch.tensor([(h, h % R, (3 * h + 1) % N) for h in range(N)])
MODELS = {
    "rotate": RotatE.init(N, R, DIM, seed=0, gamma=6.5),
    "rotate l2 interleaved": RotatE.init(N, R, DIM, seed=0, norm="l2", layout="interleaved"),
    "phases": RotatE(torch.randn(N, 2 * DIM), torch.randn(R, DIM), relation_format="phase"),
    "transe l2": TransE.init(N, R, DIM, seed=0, norm="l2"),
    "complex": ComplEx.init(N, R, DIM, seed=0),
    "cp": CP.init(N, R, DIM, seed=0),
    "rescal": RESCAL.init(N, R, DIM, seed=0),
    "conve": ConvE.init(N, R, DIM, embedding_height=2, kernel_size=2, channels=3, seed=0),
    "med": MED(RotatE.init(N, R, DIM, seed=0), [2, DIM], 1, "split", "sigmoid"),
    "rscf": RSCF(TransE.init(N, R, DIM, seed=0), seed=1),
    "med of rscf": MED(RSCF(RotatE.init(N, R, DIM, seed=0), seed=1), [2, DIM]),
    "inverses": Reciprocal(DistMult.init(N, 2 * R, DIM, seed=0)),
    "med with inverses": MED(
        Reciprocal(RSCF(TransE.init(N, 2 * R, DIM, seed=0), seed=1), "appended"), [4, DIM]
    ),
    **{
        str(dtype): DistMult.init(N, R, DIM, seed=0).to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
    },
}


def same_ranks(one, other, **options):
    one, other = (kgfast.rank(it, TRIPLES, **options) for it in (one, other))
    return torch.equal(one.greater, other.greater) and torch.equal(one.equal, other.equal)


@pytest.fixture
def plain():
    return TransE.init(N, R, DIM, seed=0)


@pytest.fixture
def folder(plain, tmp_path):
    kgfast.save(plain, tmp_path / "it", entities=ENTITIES, relations=RELATIONS, known=TRIPLES)
    return tmp_path / "it"


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name, tmp_path):
    model = MODELS[name].eval()
    kgfast.save(model, tmp_path / "it", entities=ENTITIES, relations=RELATIONS, known=TRIPLES)
    run = kgfast.load_run(tmp_path / "it")
    assert (run.config, run.dataset, run.step) == (None, None, None)
    assert run.vocabulary.entities.names == tuple(ENTITIES)
    assert run.vocabulary.relations.names == tuple(RELATIONS)
    assert run.known().checksum == kgfast.KnownTriples(TRIPLES).checksum
    assert not run.model.training
    assert not any(it.requires_grad for it in run.model.parameters())
    assert same_ranks(model, run.model, known=run.known())
    own, again = model.state_dict(), run.model.state_dict()
    assert own.keys() == again.keys()
    assert all(torch.equal(own[it], again[it]) for it in own)
    for dim in model.dims or ():
        assert same_ranks(model, run.model, dims=dim)
    for option in ("submodels_per_step", "loss_weight", "crop"):
        assert getattr(model, option, None) == getattr(run.model, option, None)
    files = load_file(tmp_path / "it" / "model.safetensors")  # the way of other programs
    assert files.keys() == own.keys()
    assert all(torch.equal(own[it], files[it]) and own[it].dtype == files[it].dtype for it in own)
    if not isinstance(model, CP):
        table = kgfast.load_run(tmp_path / "it", as_table=True).model
        assert isinstance(table.entity, Rows)
        assert same_ranks(model, table, known=run.known())


@pytest.mark.parametrize("layers", [["RotatE"], ["MED", "RotatE"]])
def test_what_it_describes_is_written_as_documented(layers, tmp_path):
    model = RotatE.init(N, R, DIM, seed=0)
    kgfast.save(MED(model, [2, DIM]) if len(layers) > 1 else model, tmp_path / "it")
    facts = json.loads((tmp_path / "it" / "config.json").read_text())
    assert facts.keys() == {"format", "layers", "score", "dim", "num_entities", "num_relations"}
    assert [it["class"] for it in facts["layers"]] == layers
    options = {"class", "gamma", "layout", "relation_format", "norm"}
    assert facts["layers"][-1].keys() == options
    names = [it.name for it in (tmp_path / "it").iterdir()]
    assert sorted(names) == ["config.json", "model.safetensors"]
    run = kgfast.load_run(tmp_path / "it")
    assert (type(run.model).__name__, run.vocabulary, run.known()) == (layers[0], None, None)


def test_tables_are_copied_in_blocks_and_mapped(tmp_path, monkeypatch):
    """A table in a file, and an array that is mapped, are never asked for as a whole."""
    monkeypatch.setattr(files, "_BLOCK", 10 * DIM * 4)
    rows = torch.randn(N, DIM)
    np.save(tmp_path / "entity.npy", rows.numpy())
    table, asked = kgfast.tables.open(tmp_path / "entity.npy"), []
    block = table.block
    monkeypatch.setattr(table, "block", lambda *it: asked.append(it) or block(*it))
    kgfast.save(TransE(table, rows[:R]), tmp_path / "it")
    assert asked == [(0, 10), (10, 20), (20, 30)]
    mapped = np.load(tmp_path / "entity.npy", mmap_mode="r")
    kgfast.save(TransE(mapped, rows[:R].numpy()), tmp_path / "also")
    for name in ("it", "also"):
        assert torch.equal(kgfast.load_run(tmp_path / name).model.entity, rows)
    path = str((tmp_path / "it" / "model.safetensors").resolve())
    model = kgfast.load_run(tmp_path / "it").model
    assert path in Path("/proc/self/maps").read_text()
    model.entity += 1  # private: the file stays as it is
    assert torch.equal(kgfast.load_run(tmp_path / "it").model.entity, rows)


def test_known_triples_in_every_form(plain, tmp_path):
    names = [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in TRIPLES.tolist()]
    index = kgfast.KnownTriples(TRIPLES)
    index.save(tmp_path / "known")
    forms = {
        "names": names,
        "array": TRIPLES.numpy(),
        "rows": TRIPLES.tolist(),
        "index": index,
        "folder": kgfast.KnownTriples.open(tmp_path / "known"),
    }
    for name, known in forms.items():
        kgfast.save(plain, tmp_path / name, entities=ENTITIES, relations=RELATIONS, known=known)
        run = kgfast.load_run(tmp_path / name)
        assert run.known().checksum == index.checksum, name
        relations = {"heads": [0, 1], "tails": [1, 4], "k": 3}
        found = kgfast.topk(run.model, **relations, known=run.known())
        assert torch.equal(found.ids, kgfast.topk(plain, **relations, known=index).ids)


REFUSED = [
    ({"entities": ENTITIES[1:]}, "entities must be 30 names, one for each row; got 29"),
    ({"relations": [*RELATIONS, "r9"]}, "relations must be 4 names, one for each row; got 5"),
    ({"entities": [*ENTITIES[:7], "e3"]}, r"entities: names\[7\] = 'e3' is a duplicate"),
    ({"entities": ["a", "b\tc"]}, r"entities\[1\] = 'b\\tc' must have .* no tab and no line break"),
    ({"entities": ["a", ""]}, r"entities\[1\] = '' must have a character"),
    ({"entities": ["a", 3]}, r"entities: names must be strings, got names\[1\] = 3"),
    ({"entities": "entities.txt"}, r"entities must be a list of names; got 'entities.txt'"),
    ({"known": [(0, 0, 1), (0, 0, N)]}, r"known: triples\[1\] = \(0, 0, 30\): tail 30 must be in"),
    ({"known": kgfast.KnownTriples([(0, R, 0)])}, r"known: relation 4 must be in 0..3"),
    ({"known": [("e0", "r0", "e1")]}, "known: triples must be integers, got names"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input_is_named_and_nothing_is_left(plain, tmp_path, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kgfast.save(plain, tmp_path / "it", **options)
    assert list(tmp_path.iterdir()) == []


def test_models_whose_code_is_not_here(tmp_path):
    class Own(TransE):
        """A subclass may score otherwise."""

    others = {"Own": Own.init(N, R, DIM), "Linear": torch.nn.Linear(2, 2), "NoneType": None}
    for name, model in others.items():
        with pytest.raises(TypeError, match=f"model must be RotatE, .* around another; got {name}"):
            kgfast.save(model, tmp_path / "it")
    with pytest.raises(ValueError, match="the first 2 of 4 dimensions have the range of all"):
        kgfast.save(kgfast.RotatE.init(N, R, 4).first_columns(2), tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_occupied_stays(plain, folder, tmp_path):
    before = {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()}
    with pytest.raises(ValueError, match=r"it is there already: name another folder"):
        kgfast.save(plain, folder)
    assert {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()} == before
    (tmp_path / "empty").mkdir()
    kgfast.save(plain, tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other", target_is_directory=True)
    kgfast.save(plain, tmp_path / "link")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["empty", "it", "link", "other"]


class TestDamaged:
    def edit(self, folder, **changes):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    @pytest.mark.parametrize("number", [2, 99, None, "1", True, 1.0])
    def test_another_format(self, folder, number):
        self.edit(folder, format=number)
        with pytest.raises(ValueError, match=r"config.json: format must be 1; got .*convert"):
            kgfast.load_run(folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "known/tail.indices.npy"])
    def test_a_truncated_file(self, folder, name):
        whole = (folder / name).read_bytes()
        for size in (len(whole) - 1, 9, 0):
            (folder / name).write_bytes(whole[:size])
            with pytest.raises(ValueError, match=rf"{name}: truncated"):
                kgfast.load_run(folder)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", r"entities.json: not a list of names"),
            ('["a"]', r"entities.json: .*1 names; the tables have 30 rows"),
            ("[1]", r"entities.json: .*names must be strings"),
        ],
    )
    def test_names(self, folder, content, message):
        (folder / "entities.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            kgfast.load_run(folder)

    def test_a_tensor_that_is_missing_or_of_another_shape(self, tmp_path):
        kgfast.save(MODELS["rscf"], tmp_path / "it")
        rscf, plain = json.loads((tmp_path / "it" / "config.json").read_text())["layers"]
        self.edit(tmp_path / "it", layers=[plain])
        with pytest.raises(ValueError, match=r"model.safetensors: must hold entity; it has"):
            kgfast.load_run(tmp_path / "it")
        for wrong in (rscf | {"class": "X"}, {}, 3):
            self.edit(tmp_path / "it", layers=[wrong, plain])
            with pytest.raises(ValueError, match=r"it.*: "):
                kgfast.load_run(tmp_path / "it")


def test_a_run_is_no_table(tmp_path):
    write_ring(tmp_path / "ring")
    ring_trainer(tmp_path, tmp_path / "run").fit()
    with pytest.raises(ValueError, match=r"run is a run, which is read whole"):
        kgfast.load_run(tmp_path / "run", as_table=True)


class TestData:
    @pytest.fixture
    def ring(self, tmp_path):
        write_ring(tmp_path / "ring", entities=[f"e{i}" for i in reversed(range(RING))])
        return tmp_path / "ring"

    def model(self, tmp_path, **names):
        model = TransE.init(RING + 1, 2, DIM, seed=0)
        kgfast.save(model, tmp_path / "it", **names)
        return tmp_path / "it"

    def test_they_are_read_by_name(self, ring, tmp_path):
        """In another order, and of fewer entities than the tables have."""
        names = [f"e{i}" for i in range(RING + 1)]
        folder = self.model(tmp_path, entities=names, relations=["previous", "next"])
        run = kgfast.load_run(folder, ring)
        data = kgfast.datasets.load(ring)
        assert run.dataset.entities.names == tuple(names)
        rows = run.dataset.test.hrt
        assert data.entities.names_of(data.test.head_ids) == [names[i] for i in rows[:, 0]]
        ranks = run.ranks("test")
        assert torch.equal(
            ranks.greater, kgfast.rank(run.model, rows, known=run.dataset.known()).greater
        )
        assert run.known() is run.dataset.known()
        assert torch.equal(run.ranks("test", known=None).greater, ranks.greater)
        assert run.ranks("test", ["tail"], batch_size=1).sides == ("tail",)

    def test_without_names_no_data_are_read(self, ring, tmp_path):
        with pytest.raises(ValueError, match=r"has no names of entities, by which data are read"):
            kgfast.load_run(self.model(tmp_path), ring)

    def test_without_data_nothing_is_ranked(self, tmp_path):
        with pytest.raises(ValueError, match="rank: no data were loaded: name a dataset"):
            kgfast.load_run(self.model(tmp_path)).ranks()
