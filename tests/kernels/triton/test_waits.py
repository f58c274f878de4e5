"""Waits of the host for a GPU, counted without one: once a batch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import kgfast
from kgfast import losses
from kgfast.eval import counting, queries
from kgfast.kernels.operands import Known, Operands
from kgfast.ops.rank import _rank_counts
from kgfast.ops.run import operands_of
from kgfast.ops.topk import _topk
from support.triton_code import compiled
from support.waits import CountsStep, LiveMemory, PretendDevice, RunsBodies, ids, key_of, meta

pytest.importorskip("triton")
pytestmark = compiled

NOTHING_FITS = 1 << 40  # a band of this size overflows; a flag of this value is true


def operands(batch: int, rows: int = 3000, dim: int = 64, **options) -> Operands:
    return operands_of(meta(batch, dim), meta(rows, dim), "rotate", **options)


def count_ranks(operands: Operands, known: int, subset: Tensor | None = None):
    batch, candidates = operands.num_queries, replace(operands.candidates, ids=subset)
    operands = replace(operands, candidates=candidates)
    return _rank_counts.body(operands, ids(batch), Known(ids(batch + 1), ids(known)))


@pytest.mark.parametrize("value", [1, NOTHING_FITS])
@pytest.mark.parametrize("dims", [None, [32, 4, 16]])
def test_the_operator_waits_once(launches, dims, value) -> None:
    """Also where the index is unsorted and, with the larger value, every band overflows."""
    with PretendDevice(value) as device:
        bias, subset = meta(3000), torch.arange(2000, device="meta")
        counts = count_ranks(operands(300, bias=bias, dims=dims), 5, subset)
    assert device.waits == {"device to host": 1}
    assert {count.shape for count in counts} == {(300,) if dims is None else (3, 300)}
    overflows = value == NOTHING_FITS
    assert set(launches) == {"decide", "pack", "write_thresholds", "sweep", "count_known"}
    crops = len(dims or [1])
    assert overflows or launches["pack"] == 2 * crops  # the queries and the table
    per_crop = launches["count_known"] // crops
    assert per_crop == 2  # the index is unsorted
    assert (launches["sweep"] > 4 * crops) == overflows


def best(batch: int, rows: int, dims: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Find the best five on the device, with known answers."""
    known = Known(ids(batch + 1), ids(3))
    return _topk.body(operands(batch, rows, dims=dims), 5, known, False)


@pytest.mark.parametrize("dims", [None, [32, 4]])
@pytest.mark.parametrize("batch", [1, 3000])
def test_the_best_are_waited_for_once(launches, batch, dims) -> None:
    """However many chunks and passes there are: of 3000 queries these are 38 sweeps."""
    with PretendDevice(1) as device:
        scores, ids = best(batch, 1_500_000, dims)
    assert device.waits == {"device to host": 1}
    assert scores.shape == ids.shape == (*([2] if dims else []), batch, 5)
    crops = len(dims or [1])
    if batch == 1:
        assert launches["sweep_in_place"] <= 8 * crops
        assert "sweep" not in launches
    else:
        assert launches["sweep"] > 30


def test_what_overflows_is_waited_for_again(launches) -> None:
    with PretendDevice(NOTHING_FITS) as device:
        best(300, 3000)
    assert 1 < device.waits["device to host"] < 30


def test_bands_are_decided_once_a_pass(launches) -> None:
    """Chunks of candidates share a band: 30 are swept, the open pairs of all are decided once."""
    with PretendDevice(1):
        count_ranks(operands(40, 300_000, 512), 0)
    sweeps = launches["sweep"]
    assert sweeps >= 15
    assert launches["decide"] == 2  # the targets, and once the open pairs
    assert launches["pack"] == 1 + sweeps


def test_no_queries_still_read_the_checks(launches) -> None:
    with PretendDevice(1) as device:
        count_ranks(operands(0), 0)
    assert device.waits == {"device to host": 1}
    assert not launches


@pytest.mark.parametrize("known_on", [None, "cpu", "meta"])
@pytest.mark.parametrize("has_subset", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "make"), [(5, kgfast.TransE), (20, kgfast.RotatE)], ids=["transe", "rotate"]
)
def test_rank_waits_once_a_batch(
    monkeypatch, launches, known_on, has_subset, batch_size, make
) -> None:
    """Beside that the counts of a group of batches are copied, and the numbers of known answers."""
    monkeypatch.setattr(counting, "_WAITING", 20)
    monkeypatch.setattr(queries, "_PINNING", ("meta",))
    triples = torch.randint(7, (40, 3))
    known = None if known_on is None else kgfast.KnownTriples(triples)
    with PretendDevice(1) as device:
        width = 4 if make is kgfast.TransE else 2
        model = make(torch.empty(7, 4, device="meta"), torch.empty(7, width, device="meta"))
        subset = torch.arange(5, device="meta") if has_subset else None
        if known_on == "meta":
            known = known.to("meta")
        device.waits.clear()
        ranks = kgfast.rank(
            model, triples, known=known, candidate_ids=subset, batch_size=batch_size
        )
    batches, groups = 2 * 40 // batch_size, 2 * 40 // 20  # both sides are counted
    of_sides = 2 * ((known_on == "meta") + has_subset)  # answers are counted, ids are checked
    assert device.waits == {"device to host": batches + groups + of_sides}
    assert len(ranks.greater) == 40


class SeesPairs(RunsBodies):
    """Operators of torch that read or write a number, or a mask, for each of ``shapes``."""

    def __init__(self, *shapes: tuple[int, int]) -> None:
        super().__init__(0)
        self.shapes, self.passes = shapes, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.operators.total()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace != "kgfast" and self.operators.total() > before:
            leaves = tree_leaves((args, kwargs, result))
            seen = [it for it in leaves if torch.is_tensor(it) and it.dtype != torch.int64]
            if any(it.shape[-2:] in self.shapes for it in seen):
                self.passes.append(str(func))
        return result


def l2(entity, relation):
    return kgfast.TransE(entity, relation, norm="l2")


@pytest.mark.parametrize("loss", [losses.nssa, losses.margin, losses.logistic])
@pytest.mark.parametrize("make", [l2, kgfast.RotatE, kgfast.DistMult])
@pytest.mark.parametrize("is_pool", [True, False], ids=["pool", "lists"])
def test_no_operator_of_torch_passes_over_the_scores_of_a_step(
    launches, make, loss, is_pool
) -> None:
    """Neither forward nor backward, masked ones too."""
    batch, width = 100, 50
    with SeesPairs((batch, width), (batch, width + 1)) as device:
        model, triples = trainable(make), ids(batch, 3)
        negatives = ids(width) if is_pool else ids(batch, width)
        mask = torch.empty(batch, width, dtype=torch.bool, device="meta")
        device.waits.clear()
        with kgfast.unchecked():
            loss(model, triples, negatives, mask=mask).backward()
    assert not device.passes
    assert not device.waits


def trainable(make, count: int = 3000):
    """Return a model whose tables train."""
    columns = 32 if make is kgfast.RotatE else 64
    return make(*(torch.nn.Parameter(meta(*shape)) for shape in ((count, 64), (7, columns))))


def conve(count: int = 3000):
    model = kgfast.ConvE.init(7, 7, dim=64, embedding_height=8, seed=0).to("meta")
    model.bias = torch.nn.Parameter(meta(count))
    return model.with_entity(torch.nn.Parameter(meta(count, 64)))


def sampled(*shape: int, loss=losses.nssa):
    """Return a loss of negatives of a shape."""

    def run(model, triples, sparse):
        return loss(model, triples, ids(*shape), sparse=sparse)

    return run


def cross_entropy(model, triples, sparse):
    return losses.cross_entropy(model, triples, label_smoothing=0.1, sparse=sparse)


def bce(model, triples, sparse):
    return losses.bce(model, triples, label_smoothing=0.1, sparse=sparse)


def croppable():
    """RotatE with filters and three crops."""
    model = kgfast.RSCF(kgfast.RotatE.init(7, 7, dim=32, seed=0), seed=0)
    model = kgfast.MED(model, dims=[8, 16, 32]).to("meta")
    return model.with_entity(torch.nn.Parameter(meta(3000, 64)))


MED_POOL, MED_LISTS = sampled(500, loss=losses.med), sampled(100, 50, loss=losses.med)
# Kernels, and operators of torch, of a loss and its gradients: they may fall, not grow.
STEPS = {
    "nssa, a pool": (kgfast.RotatE, sampled(500), False, (12, 17)),
    "nssa, lists": (kgfast.RotatE, sampled(100, 50), False, (8, 12)),
    "margin, a pool": (kgfast.TransE, sampled(500, loss=losses.margin), False, (10, 18)),
    "logistic, a pool": (kgfast.DistMult, sampled(500, loss=losses.logistic), False, (9, 17)),
    "cross entropy": (kgfast.ComplEx, cross_entropy, False, (10, 13)),
    "cross entropy, sparse": (kgfast.ComplEx, cross_entropy, True, (10, 15)),
    "bce": (kgfast.ComplEx, bce, False, (9, 11)),
    "bce, sparse": (kgfast.ComplEx, bce, True, (9, 13)),
    "bce, ConvE": (conve, bce, False, (7, 44)),
    "bce, ConvE, sparse": (conve, bce, True, (7, 46)),
    "MED and RSCF, a pool": (croppable, MED_POOL, False, (33, 132)),
    "MED and RSCF, lists": (croppable, MED_LISTS, False, (21, 117)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_no_more_kernels_and_operators_than_it_had(launches, name) -> None:
    """Nor does it wait."""
    make, loss, sparse, most = STEPS[name]
    model = make() if make in (conve, croppable) else trainable(make)
    with CountsStep() as device:
        triples = ids(100, 3)
        with kgfast.unchecked():
            value = loss(model, triples, sparse)
            value.backward()
    assert not device.waits
    assert (launches.total(), device.seen.total()) <= most, (launches, device.seen)
    assert device.seen.total() <= most[1], device.seen


class LiveBodies(RunsBodies, LiveMemory):
    """The memory that operators take, too, within which those of kgfast run."""


@pytest.mark.parametrize("sparse", [True])
@pytest.mark.parametrize("loss", [cross_entropy, bce])
@pytest.mark.parametrize("name", ["complex", "rotate", "conve"])
def test_a_loss_over_all_candidates_makes_one_gradient_of_the_table(
    launches, name, loss, sparse
) -> None:
    """Queries, whose anchors are rows of the table, have none of their own."""
    count = 1_000_000
    if name == "conve":
        model = conve(count)
    else:
        model = trainable({"complex": kgfast.ComplEx, "rotate": kgfast.RotatE}[name], count=count)
    with LiveBodies(1) as memory:
        triples = ids(20, 3)
        with kgfast.unchecked():
            loss(model, triples, sparse).backward()
    table = model.entity.numel() * 4
    assert model.entity.grad.shape == model.entity.shape
    assert table <= memory.peak < 1.9 * table


CAPTURED = [
    *(pytest.param(*step[:3], id=name) for name, step in STEPS.items()),
    pytest.param(kgfast.RotatE, sampled(500), True, id="nssa, a pool, sparse"),
    pytest.param(kgfast.RotatE, sampled(100, 50), True, id="nssa, lists, sparse"),
    pytest.param(croppable, MED_POOL, True, id="MED and RSCF, a pool, sparse"),
    pytest.param(croppable, MED_LISTS, True, id="MED and RSCF, lists, sparse"),
]


@pytest.mark.parametrize(("make", "loss", "sparse"), CAPTURED)
def test_a_step_can_be_captured(launches, make, loss, sparse) -> None:
    """Run it with torch's fake tensors: no operator and no shape depends on a value.

    Nor does memory outlive the step, but that of the loss and the gradients.
    """
    model = make() if make in (conve, croppable) else trainable(make)
    without_values(model, fake := FakeTensorMode())
    with fake, LiveBodies(1) as device:
        triples = ids(100, 3)
        stay = []
        for _ in range(2):
            before = device.alive()
            with kgfast.unchecked():
                value = loss(model, triples, sparse)
                value.backward()
            value = value.detach()  # else the graph keeps all that the backward read
            gradients = [it.grad for it in model.parameters() if it.grad is not None]
            parts = [part for it in gradients for part in _parts(it)]
            stay.append(device.alive() - before - {key_of(it) for it in (value, *parts)})
            del gradients, parts
            model.zero_grad()
    assert not device.waits
    assert stay == [set(), set()]


def without_values(model, fake):
    """Let fake tensors stand for what a model holds."""
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, it in held.items():
                if it is not None:
                    own = fake.from_tensor(it.detach())
                    held[name] = torch.nn.Parameter(own) if held is module._parameters else own


def _parts(tensor):
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
