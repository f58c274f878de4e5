"""After training: a run folder as a model with names, wherever it was moved to."""

import json
import shutil

import pytest

import kgfast
from kgfast.models import TransE
from kgfast.training import LoadedRun, RunFolder, checkpoint
from support.small_runs import RING, RING_CONFIG, assert_same_tensors, ring_trainer, write_ring


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with data, ``ring``, and a run on them, ``run``."""
    root = tmp_path_factory.mktemp("loading")
    write_ring(root / "ring")
    ring_trainer(root, root / "run").fit()
    return root


@pytest.fixture
def moved(root, tmp_path):
    """Return the run elsewhere, where its config points to no data."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(root / "run", folder)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace(str(root), str(tmp_path / "gone")))
    return folder


def test_a_run_with_its_data(root):
    run = kgfast.load_run(root / "run")
    assert isinstance(run, LoadedRun)
    tensors, _ = checkpoint.load(root / "run" / "best.safetensors")
    own = {f"model.{name}": table for name, table in run.model.state_dict().items()}
    assert_same_tensors(own, tensors)
    assert not run.model.training
    assert not any(it.requires_grad for it in run.model.parameters())
    assert run.vocabulary.entities.names == tuple(f"e{i}" for i in range(RING))
    assert run.vocabulary.relations.names == ("next", "previous")
    ranks = kgfast.rank(run.model, run.dataset.test, known=run.dataset.known())
    assert ranks.mrr == RunFolder(root / "run").read_result()["test"]["mrr"]
    top = kgfast.topk(run.model, heads=[0], relations=0, k=3, vocabulary=run.vocabulary)
    assert top[0][0][0].startswith("e")
    assert "with dataset ring" in repr(run)


def test_a_moved_run_resumes_with_the_graph_that_it_stores(root, tmp_path):
    shutil.copytree(root / "run", tmp_path / "run")
    longer = {"train": RING_CONFIG["train"] | {"steps": 16}}
    trainer = ring_trainer(tmp_path / "gone", tmp_path / "run", **longer)
    assert trainer.fit(resume=True).steps == 16
    for place in (tmp_path / "gone", tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"no dataset ring: neither .* set dataset\.root"
        ):
            ring_trainer(place, tmp_path / "other")


def test_a_config_that_is_not_that_of_the_checkpoint(root, tmp_path):
    shutil.copytree(root / "run", tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("gamma: 6.0", "gamma: 2.0"))
    with pytest.raises(ValueError, match=r"config\.yaml: model\.gamma is 2\.0, in the check.* 6"):
        kgfast.load_run(tmp_path / "run")


@pytest.mark.parametrize("how", ["root", "folder", "dataset"])
def test_data_that_are_named(root, moved, how):
    data = {"root": root, "folder": root / "ring", "dataset": kgfast.datasets.load(root / "ring")}
    run = kgfast.load_run(moved, data[how])
    assert len(run.dataset.train) == 20
    with pytest.raises(FileNotFoundError, match="no dataset ring"):
        kgfast.load_run(moved, root / "nowhere")


def test_another_graph_is_an_error_unless_no_data_are_wanted(root, tmp_path):
    write_ring(tmp_path / "ring", [f"x{i}" for i in range(RING)], {"train": [("x0", "next", "x1")]})
    with pytest.raises(ValueError, match=r"ring is not the graph of this run: names, train, valid"):
        kgfast.load_run(root / "run", tmp_path)
    alone = kgfast.load_run(root / "run", False)
    assert (alone.dataset, "without data" in repr(alone)) == (None, True)


@pytest.mark.parametrize(
    "sections",
    [
        {
            "model": {"name": "conve", "base_dim": 16, "embedding_height": 4, "gamma": 12.0},
            "train": {"mode": "kvsall"},
            "loss": {"name": "bce"},
            "optim": {"name": "adam"},
        },
        {"model": {"use_rscf": True}, "med": {"dims": [2, 4]}},
        {"model": {"reciprocal": True}, "med": {"dims": [2, 4]}},
        {"model": {"name": "cp", "reciprocal": True, "gamma": 12.0}},
    ],
    ids=["conve", "med of rscf", "med with inverses", "cp with inverses"],
)
def test_other_models(root, tmp_path, sections):
    trainer = ring_trainer(root, tmp_path / "run", **sections)
    trainer.fit()
    run = kgfast.load_run(tmp_path / "run", checkpoint="last")
    assert type(run.model) is type(trainer.model)
    state = {f"model.{name}": it for name, it in run.model.state_dict().items()}
    tensors, _ = checkpoint.load(tmp_path / "run" / "last.safetensors")
    assert_same_tensors(state, {name: tensors[name] for name in state})


class TestIncomplete:
    @pytest.mark.parametrize(
        ("missing", "what"),
        [
            ("config.yaml", "not the folder of a run"),
            ("*.safetensors", "holds no checkpoint"),
            ("", "no such folder"),
        ],
    )
    def test_what_is_missing_is_named(self, moved, missing, what):
        for path in moved.glob(missing) if missing else ():
            path.unlink()
        with pytest.raises(FileNotFoundError, match=what):
            kgfast.load_run(moved if missing else moved / "nowhere")

    def test_a_graph_of_another_run(self, moved):
        RunFolder(moved).write_graph(kgfast.datasets.synthetic(50, 3, 60, 5, 5))
        with pytest.raises(ValueError, match="rows of the checkpoint belong to other names"):
            kgfast.load_run(moved)

    def test_a_checkpoint_that_is_damaged(self, moved):
        path = moved / "best.safetensors"
        whole = bytearray(path.read_bytes())
        whole[-1] ^= 1
        path.write_bytes(whole)
        with pytest.raises(ValueError, match=r"best\.safetensors: damaged"):
            kgfast.load_run(moved)


def test_nothing_is_written(root, moved):
    before = {it.name: (it.stat().st_mtime_ns, it.stat().st_ino) for it in moved.iterdir()}
    kgfast.load_run(moved, root)
    after = {it.name: (it.stat().st_mtime_ns, it.stat().st_ino) for it in moved.iterdir()}
    assert after == before


class TestTypes:
    """Candidates of each relation, from training or a file."""

    def test_those_of_training(self, root):
        run = kgfast.load_run(root / "run")
        assert run.type_constraints() == kgfast.TypeConstraints.from_triples(run.dataset.train)

    def test_a_file_of_relations(self, root, tmp_path):
        run = kgfast.load_run(root / "run", data=False)
        named = {"previous": {"head": ["e3"], "tail": ["e1", "e2"]}}
        expected = kgfast.TypeConstraints(named, vocabulary=run.vocabulary)
        (tmp_path / "types.json").write_text(json.dumps(named))
        assert run.type_constraints(tmp_path / "types.json") == expected

    def test_ids_of_a_model_without_names(self, tmp_path):
        kgfast.save(TransE.init(4, 2, 8, seed=0), tmp_path / "it")
        run = kgfast.load_run(tmp_path / "it")
        (tmp_path / "types.json").write_text('{"1": [[3], [0, 2]]}')
        assert run.type_constraints(tmp_path / "types.json").candidates(1, "tail").tolist() == [
            0,
            2,
        ]
        (tmp_path / "types.json").write_text('{"1": [[4], [0, 2]]}')
        with pytest.raises(ValueError, match=r"types.json: .*are of 5 entities, .* model has 4"):
            run.type_constraints(tmp_path / "types.json")
        with pytest.raises(ValueError, match="types: no data were loaded"):
            run.type_constraints()

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.json", '{"nexd": [[], []]}', "a.json: .*unknown name 'nexd'.*'next'"),
            ("a.json", '{"next": [["e33"], []]}', "a.json: .*unknown name 'e33'.*'e3'"),
            ("a.json", '{"next": [[], []], "next": [["e1"], []]}', "a.json: .*'next' stands twice"),
            ("a.json", "[1]", "a.json: not the types of this model"),
            ("a.json", '{"nexd": []}', "a.json: .*unknown name 'nexd'"),
            ("a.json", "{}", "a.json: holds no types"),
            ("a.json", "{", "a.json: not the types of this model"),
            ("a.tsv", "e1\n", "a.tsv:1: expected an entity, a tab and a type"),
        ],
    )
    def test_bad_files_are_named(self, root, tmp_path, name, text, message):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            kgfast.load_run(root / "run", data=False).type_constraints(tmp_path / name)

    def test_files_that_are_not_there(self, root, tmp_path):
        run = kgfast.load_run(root / "run", data=False)
        with pytest.raises(FileNotFoundError, match="none: no such file; 'train' takes the types"):
            run.type_constraints(tmp_path / "none")
