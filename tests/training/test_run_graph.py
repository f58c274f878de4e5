"""A run knows its graph: whatever order data come in they mean the same, and others are refused."""

import random

import pytest
import torch

from kgfast.datasets import Dataset, synthetic
from kgfast.graph import Triples, Vocabulary
from kgfast.training import RunFolder, checkpoint
from support.commands import run as cli
from support.small_runs import (
    RING,
    assert_same_tensors,
    content,
    crashing,
    ring_trainer,
    ring_triples,
    write_ring,
)

SHUFFLED = random.Random(1).sample([f"e{i}" for i in range(RING)], RING)


def named(dataset, split):
    rows = getattr(dataset, split).hrt.tolist()
    entities, relations = dataset.entities, dataset.relations
    return [(entities.name(h), relations.name(r), entities.name(t)) for h, r, t in rows]


class TestTheGraph:
    def test_names_of_any_kind(self, tmp_path):
        entities = Vocabulary(["a", "", "\ud800", "b\nc", "\0", "ä" * 1000])
        relations = Vocabulary(["r"])
        nothing = Triples([], entities=entities, relations=relations)
        folder = RunFolder(tmp_path)
        folder.write_graph(Dataset("x", nothing, nothing, nothing, entities, relations))
        assert folder.load_graph().entities == entities

    def test_files_that_lie(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.write_graph(synthetic(50, 3, 60, 5, 5))
        tensors, meta = checkpoint.load(folder.graph)
        for change in (
            {"entities": tensors["entities"][:-1]},
            {"entities": torch.full_like(tensors["entities"], 255)},
            {"entities": tensors["relations"]},
            {"train": tensors["train"] + 1000},
            {"train": tensors["train"].float()},
            {"train": tensors["train"][:, :2]},
        ):
            checkpoint.save(folder.graph, tensors | change, meta)
            with pytest.raises(ValueError, match="not the graph of a run"):
                folder.load_graph()
        for missing in tensors:
            rest = {it: tensors[it] for it in tensors if it != missing}
            checkpoint.save(folder.graph, rest, meta)
            with pytest.raises(ValueError, match=r"not the graph of a run: KeyError"):
                folder.load_graph()
        checkpoint.save(folder.graph, tensors, meta | {"graph": "x"})
        with pytest.raises(ValueError, match="the digest is not that of the names"):
            folder.load_graph()


def test_evaluation_takes_the_same_graph_in_another_order(tmp_path):
    write_ring(tmp_path / "ring")
    ring_trainer(tmp_path, tmp_path / "run").fit()
    expected = cli("evaluate", tmp_path / "run")
    assert expected.exit_code == 0, expected.stderr
    rows = {split: list(reversed(it)) for split, it in ring_triples().items()}
    write_ring(tmp_path / "other" / "ring", SHUFFLED, rows)
    found = cli("evaluate", tmp_path / "run", "--data", tmp_path / "other")
    assert (found.exit_code, found.stderr, found.stdout) == (0, "", expected.stdout)


class TestResume:
    def half(self, place, **sections):
        """Return a run as a kill after step 8 leaves it."""
        with crashing(8), pytest.raises(MemoryError):
            ring_trainer(place, place / "run", **sections).fit()
        return RunFolder(place / "run")

    @pytest.mark.parametrize("mode", ["negative", "kvsall"])
    def test_another_order_of_names_and_lines_is_bit_equal(self, mode, tmp_path):
        model = {"name": "distmult", "gamma": 12.0}
        kvsall = {"model": model, "train": {"mode": mode}, "loss": {"name": "bce"}}
        sections = kvsall if mode == "kvsall" else {}
        write_ring(tmp_path / "ring")
        ring_trainer(tmp_path, tmp_path / "straight", **sections).fit()
        self.half(tmp_path, **sections)
        rows = {split: list(reversed(it)) for split, it in ring_triples().items()}
        write_ring(tmp_path / "ring", SHUFFLED, rows)
        resumed = ring_trainer(tmp_path, tmp_path / "run", **sections)
        result = resumed.fit(resume=True)
        assert result.steps == 12
        assert named(resumed.dataset, "train") == ring_triples()["train"]
        paths = (tmp_path / it / "last.safetensors" for it in ("straight", "run"))
        assert_same_tensors(*(checkpoint.load(path)[0] for path in paths))
        results = [RunFolder(tmp_path / it).read_result()["test"] for it in ("straight", "run")]
        assert results[0] == results[1]

    def test_another_graph_is_an_error_and_nothing_is_touched(self, tmp_path):
        write_ring(tmp_path / "ring")
        ring_trainer(tmp_path, tmp_path / "run").fit()
        before = content(tmp_path / "run")
        rows = ring_triples()
        rows["train"][3] = ("e0", "previous", "e9")
        write_ring(tmp_path / "ring", splits=rows)
        with pytest.raises(ValueError, match="ring is not the graph of this run: train differ"):
            ring_trainer(tmp_path, tmp_path / "run").fit(resume=True)
        assert content(tmp_path / "run") == before

    def test_a_damaged_or_missing_graph_is_an_error(self, tmp_path):
        write_ring(tmp_path / "ring")
        run = self.half(tmp_path)
        whole = bytearray(run.graph.read_bytes())
        whole[-3] ^= 16
        run.graph.write_bytes(whole)
        with pytest.raises(ValueError, match=r"graph\.safetensors: damaged"):
            ring_trainer(tmp_path, run.path).fit(resume=True)
        run.graph.unlink()
        with pytest.raises(ValueError, match=r"graph\.safetensors is missing"):
            ring_trainer(tmp_path, run.path).fit(resume=True)

    def test_a_run_begins_without_what_a_killed_one_left(self, tmp_path):
        write_ring(tmp_path / "ring")
        run = self.half(tmp_path)
        run.last.rename(run.path / "model_8.safetensors")
        run.best.write_bytes(b"of another run")
        (tmp_path / "ring").rename(tmp_path / "gone")
        with pytest.raises(FileNotFoundError):
            ring_trainer(tmp_path, run.path)
        (tmp_path / "gone").rename(tmp_path / "ring")
        ring_trainer(tmp_path, run.path, train={"eval_every": 0}).fit()
        assert run.models() == []
        assert run.load_best()[1]["step"] == 12
