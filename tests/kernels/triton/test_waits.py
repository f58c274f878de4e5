"""How often the host waits for a GPU, counted without one: once a batch."""

import os

import pytest
import torch

import kgfast
from kgfast.eval import side_counts
from kgfast.ops import rank as rank_operator
from kgfast.ops.topk import _topk
from support.waits import PretendDevice

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="needs kernels that are not interpreted"
)

NOTHING_FITS = 1 << 40  # as the size of a band; as a flag, true


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """The names of the kernels that would be launched, on an sm_90."""
    from kgfast.kernels.triton.host import launch, status

    names: list[str] = []
    monkeypatch.setenv("KGFAST_BACKEND", "triton")
    monkeypatch.setattr(launch, "launch", lambda kernel, *_, **__: names.append(kernel.__name__))
    monkeypatch.setattr(launch, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "architecture", lambda device: 90)
    monkeypatch.setattr(status.Report, "raise_if_bad", lambda report: None)
    return names


def operands(batch: int, known: int = 5) -> list:
    """Arguments of the operator on the device."""
    table, queries = torch.empty(3000, 64, device="meta"), torch.empty(batch, 64, device="meta")
    ids = torch.zeros(batch + 1, dtype=torch.int64, device="meta")
    return [queries, table, ids[1:], ids, torch.zeros(known, dtype=torch.int64, device="meta")]


@pytest.mark.parametrize("value", [1, NOTHING_FITS])
@pytest.mark.parametrize("dims", [None, [32, 4, 16]])
def test_the_operator_waits_once(launches, dims, value) -> None:
    """Also where the index is unsorted and, with the larger value, every band overflows."""
    with PretendDevice(value) as device:
        bias, subset = torch.empty(3000, device="meta"), torch.arange(2000, device="meta")
        body = rank_operator._rank_counts.body
        counts = body(*operands(300), "rotate", bias, None, dims, subset, None, False)
    assert device.waits == {"device to host": 1}
    assert {count.shape for count in counts} == {(300,) if dims is None else (3, 300)}
    overflows = value == NOTHING_FITS
    sweeps = {"sweep"} if dims is None else {"sweep_crops", *(["sweep"] if overflows else [])}
    others = {"score_targets", "pack", "rescore", "count_known"}
    assert set(launches) == others | sweeps
    assert overflows or launches.count("pack") == 2  # the queries and the table, once for all crops
    per_crop = launches.count("count_known") // len(dims or [1])
    assert per_crop == 2  # the index is unsorted
    assert (launches.count("sweep") > 4 * len(dims or [1])) == overflows


def best(batch: int, rows: int, dims: list[int] | None = None) -> list:
    """Arguments of the operator for the best five on the device, with known answers."""
    table, queries = torch.empty(rows, 64, device="meta"), torch.empty(batch, 64, device="meta")
    ids = torch.zeros(batch + 1, dtype=torch.int64, device="meta")
    return [queries, table, 5, ids, ids[:3], "rotate", None, None, dims, None, None, False, False]


@pytest.mark.parametrize("dims", [None, [32, 4]])
@pytest.mark.parametrize("batch", [1, 3000])
def test_the_best_are_waited_for_once(launches, batch, dims) -> None:
    """However many chunks and passes there are: these are 24 chunks, of 3000 queries 72."""
    with PretendDevice(1) as device:
        scores, ids = _topk.body(*best(batch, 1_500_000, dims))
    assert device.waits == {"device to host": 1}
    assert scores.shape == ids.shape == (*([2] if dims else []), batch, 5)
    crops = len(dims or [1])
    if batch == 1:
        assert launches.count("sweep_in_place") <= 8 * crops
        assert "collect" not in launches
    else:
        assert launches.count("collect") > 50


def test_what_overflows_is_waited_for_again(launches) -> None:
    with PretendDevice(NOTHING_FITS) as device:
        _topk.body(*best(300, 3000))
    assert 1 < device.waits["device to host"] < 30


def test_bands_are_decided_once_a_pass(launches) -> None:
    """Chunks of candidates share a band: 30 are swept, the open pairs of all are decided once."""
    table, queries = torch.empty(300_000, 512, device="meta"), torch.empty(40, 512, device="meta")
    ids = torch.zeros(41, dtype=torch.int64, device="meta")
    with PretendDevice(1):
        rank_operator._rank_counts.body(
            queries, table, ids[1:], ids, ids[:0], "rotate", None, None, None, None, None, False
        )
    sweeps = launches.count("sweep")
    repaired = 0  # a band of one pair fits
    assert sweeps >= 15
    assert launches.count("rescore") == 1 + repaired
    assert launches.count("pack") == 1 + sweeps


def test_no_queries_still_read_the_checks(launches) -> None:
    with PretendDevice(1) as device:
        rank_operator._rank_counts.body(
            *operands(0, known=0), "rotate", None, None, None, None, None, False
        )
    assert device.waits == {"device to host": 1}
    assert not launches


@pytest.mark.parametrize("known_on", [None, "cpu", "meta"])
@pytest.mark.parametrize("has_subset", [False, True])
@pytest.mark.parametrize("batch_size", [5, 20])
@pytest.mark.parametrize("make", [kgfast.TransE, kgfast.RotatE], ids=["transe", "rotate"])
def test_rank_waits_once_a_batch(
    monkeypatch, launches, known_on, has_subset, batch_size, make
) -> None:
    """Beside that the host copies the ids of a group of batches there, and its counts back."""
    monkeypatch.setattr(side_counts, "_GROUP", 20)
    monkeypatch.setattr(side_counts, "_PINNING", ("meta",))
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
    groups = 2 * -(-40 // (20 // batch_size * batch_size))  # of both sides
    of_groups = groups * (2 if known_on == "meta" else 1)
    batches = 2 * 40 // batch_size
    of_subset = 2 * has_subset  # whether its ids are good, for each side
    assert device.waits == {"device to host": batches + of_groups + of_subset}
    assert len(ranks.greater) == 40
