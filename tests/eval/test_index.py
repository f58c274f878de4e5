"""Index: what it serves is what the tables give, and it serves nothing else."""

import json
import threading

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import kgfast
from kgfast import Index, KnownTriples, TransE, rank, topk
from kgfast.kernels import cpu
from kgfast.kernels.backend import AdamStep
from kgfast.storage import digest
from support.ranked_models import MODELS, random_triples
from support.scorers import Recorded
from support.streamed import same

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
ENTITIES, RELATIONS = 150, 3
TRIPLES = random_triples(60, ENTITIES, RELATIONS)
KNOWN = KnownTriples(random_triples(600, ENTITIES, RELATIONS, seed=1))
SUBSET = torch.arange(0, ENTITIES, 3)


def model_of(name: str = "rotate", seed: int = 0):
    return MODELS[name](ENTITIES, RELATIONS, 8, seed)


def assert_serves(model, index: Index) -> None:
    """Check that ranks and predictions equal those without the index."""
    for options in ({"known": KNOWN}, {"known": None}, {"candidate_ids": SUBSET}):
        same(rank(model, TRIPLES, **options, index=index), rank(model, TRIPLES, **options))
    heads, relations = TRIPLES[:5, 0], TRIPLES[:5, 1]
    for asked in ({"heads": heads}, {"tails": heads}):
        for options in ({"known": KNOWN}, {"candidate_ids": SUBSET}, {}):
            plain = topk(model, **asked, relations=relations, k=7, **options)
            own = topk(model, **asked, relations=relations, k=7, **options, index=index)
            assert torch.equal(own.ids, plain.ids)
            assert torch.equal(own.scores, plain.scores)


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_tables_give(name, tmp_path):
    model = model_of(name)
    index = Index(model)
    assert len(index._panels) == (2 if name == "cp" else 1)
    assert_serves(model, index)
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", model)
    assert (loaded.nbytes, repr(loaded)) == (index.nbytes, repr(index))
    assert_serves(model, loaded)


def written(model):
    model.entity[7] += 1


def stepped_by_rows(model):
    moments = torch.zeros(2, *model.entity.shape)
    rows, step = torch.ones(1, model.entity.shape[1]), AdamStep(0.1, (0.9, 0.99), 1e-8, 0.0, 1)
    kgfast.ops.update_rows((model.entity.detach(), *moments), torch.tensor([3]), rows, step)


def stepped_by(name):
    def step(model):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)
        with torch.enable_grad():
            kgfast.losses.nssa(model, TRIPLES, SUBSET).backward()
        optimizer.step()

    return step


CHANGES = {
    "a row": ("rotate", written),
    "a row of candidates that are views": ("cp", written),
    "a step of rows": ("transe", stepped_by_rows),
    **{name: ("distmult", stepped_by(name)) for name in ("SGD", "Adam", "AdamW", "Adagrad")},
}


def assert_is_refused(model, index):
    """Check that the index is out of date, and serves again when it is packed again."""
    assert not index.is_current
    for call in (
        lambda: rank(model, TRIPLES, index=index),
        lambda: topk(model, heads=1, relations=0, k=3, index=index),
    ):
        with pytest.raises(ValueError, match=r"written to after it was packed: call index\.ref"):
            call()
    index.refresh()
    assert index.is_current
    assert_serves(model, index)


class TestChanges:
    @pytest.mark.parametrize("name", CHANGES)
    def test_a_table_that_was_written_to_is_refused_until_it_is_packed_again(self, name):
        kind, change = CHANGES[name]
        model = model_of(kind)
        index = Index(model)
        assert index.is_current
        with torch.no_grad():
            change(model)
        assert_is_refused(model, index)

    @pytest.mark.parametrize("kind", ["rotate", "cp"])
    @pytest.mark.parametrize("past", ["numpy", "data"])
    def test_a_write_past_the_counter_is_noticed(self, past, kind):
        model = model_of(kind)
        index, version = Index(model), model.entity._version
        rows = model.entity.data if past == "data" else model.entity.detach().numpy()
        rows += 1
        assert model.entity._version == version
        assert_is_refused(model, index)

    def test_numbers_that_every_call_compares_are_spread_over_the_table(self):
        model = TransE(torch.randn(3 * 256, 2), torch.randn(1, 2))
        for row, is_noticed in ((0, True), (1, False), (3 * 255, True)):
            index = Index(model)
            model.entity.data[row] += 1
            assert index.is_current != is_noticed

    def test_relations_and_biases_may_change(self):
        model = model_of()
        index = Index(model)
        with torch.no_grad():
            model.relation += 1
        assert_serves(model, index)

    def test_rows_of_inference_tensors_are_compared(self):
        with torch.inference_mode():
            model = TransE(torch.randn(ENTITIES, 4), torch.randn(RELATIONS, 4))
            index = Index(model)
        assert model.entity.is_inference()
        rank(model, TRIPLES, index=index)
        assert index.is_current
        with torch.inference_mode():
            model.entity[ENTITIES - 1, 0] += 1
        assert_is_refused(model, index)


class TestOtherModels:
    def test_crops_need_the_order_of_features(self):
        model = kgfast.MED(model_of(), dims=(2, 4, 8))
        with pytest.raises(ValueError, match="croppable=True"):
            rank(model, TRIPLES, dims=model.dims, index=Index(model))
        index = Index(model, croppable=True)
        expected = rank(model, TRIPLES, dims=model.dims)
        found = rank(model, TRIPLES, dims=model.dims, index=index)
        for dim in model.dims:
            assert torch.equal(found[dim].realistic, expected[dim].realistic)
        asked = {"heads": [3], "relations": 1, "k": 5, "dims": 4}
        assert torch.equal(topk(model, **asked).ids, topk(model, **asked, index=index).ids)

    def test_tables_elsewhere_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="tables on the CPU; this one is on meta"):
            Index(TransE(*(torch.empty(3, 2, device="meta") for _ in range(2))))
        table = kgfast.tables.open(_written(tmp_path, torch.randn(ENTITIES, 4)))
        model = TransE(table, torch.randn(RELATIONS, 4))
        with pytest.raises(ValueError, match="are in files"):
            Index(model)
        with pytest.raises(ValueError, match="read from files, in blocks"):
            rank(model, TRIPLES, index=Index(model_of("transe")))


class TestNothingHeld:
    def test_of_a_function(self):
        scorer = kgfast.BlockScorer(Recorded(torch.eye(ENTITIES)), ENTITIES, RELATIONS)
        index = Index(scorer)
        assert "holds nothing, not packed: it is scored by a function" in repr(index)
        assert torch.equal(
            rank(scorer, TRIPLES, index=index).realistic, rank(scorer, TRIPLES).realistic
        )

    def test_of_a_table_that_is_not_finite(self):
        model = model_of()
        with torch.no_grad():
            model.entity[9, 2] = torch.inf
        index = Index(model)
        assert "row 9 of the table holds a NaN or an infinity" in repr(index)
        for options in ({}, {"index": index}):
            with pytest.raises(ValueError, match="holds a NaN or an infinity"):
                rank(model, TRIPLES, **options)
        expected = rank(model, TRIPLES, nan="worst")
        found = rank(model, TRIPLES, nan="worst", index=index)
        assert torch.equal(found.realistic, expected.realistic)

    def test_of_the_reference(self):
        model = model_of()
        with kgfast.use_backend("reference"):
            index = Index(model)
            assert "the reference backend reads tables in place" in repr(index)
            assert_serves(model, index)


class TestFiles:
    def test_of_another_table_or_score(self, tmp_path):
        model, path = model_of(), tmp_path / "index"
        with pytest.raises(FileNotFoundError, match="no such file of an index"):
            Index.load(path, model)
        Index(model).save(path)
        model.entity.data[149, 15] += 1e-3  # past the version counter
        for other in (model, MODELS["rotate"](151, RELATIONS, 8, 0), model_of("transe")):
            with pytest.raises(
                ValueError, match=r"the (table|score) of the index is .*; here it is"
            ):
                Index.load(path, other)

    def test_damaged_ones(self, tmp_path):
        model, path = model_of(), tmp_path / "index"
        Index(model).save(path)
        whole = path.read_bytes()
        save_file({"x": torch.ones(1)}, path)
        bit = whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:]
        for damaged in (path.read_bytes(), whole[:-9], whole[:50], b"", b"x" * 100, bit):
            path.write_bytes(damaged)
            with pytest.raises(
                ValueError, match=r"index: (damaged, or no file of an index|the checksum of panels)"
            ):
                Index.load(path, model)

    @pytest.mark.parametrize(
        ("changed", "lanes", "message"),
        [
            ({"format": 2}, 1, "the format of the index is 2; here it is 1: make the index again"),
            (
                {"instruction set": "sve"},
                1,
                "the instruction set of the index is 'sve'; here it is ",
            ),
            ({}, 2, "the panels have other shapes than here: make the index again"),
        ],
    )
    def test_of_other_versions_and_machines(self, tmp_path, changed, lanes, message):
        model, path = model_of(), tmp_path / "index"
        Index(model).save(path)
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["kgfast_index"]) | changed
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
        panels = tensors["0.panels"]
        tensors["0.panels"] = panels.view(*panels.shape[:-1], lanes, -1).squeeze(-2)
        facts["checksum of panels"] = digest(False, *tensors, *tensors.values())
        save_file(tensors, path, {"kgfast_index": json.dumps(facts)})
        with pytest.raises(ValueError, match=message):
            Index.load(path, model)


def test_threads_share_one_while_it_is_packed_again():
    model = model_of()
    index = Index(model)
    expected = rank(model, TRIPLES).realistic
    found = []

    def ranks() -> None:
        for _ in range(8):
            found.append(torch.equal(rank(model, TRIPLES, index=index).realistic, expected))

    threads = [threading.Thread(target=ranks) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        index.refresh()
    for thread in threads:
        thread.join()
    assert found == [True] * 24


def _written(folder, table: torch.Tensor):
    import numpy as np

    np.save(folder / "entity.npy", table.numpy())
    return folder / "entity.npy"
