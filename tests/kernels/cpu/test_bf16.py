"""The bf16 products of losses: what may not matter changes no bit, and every block counts once.

tests/ops/test_bf16.py checks the numbers.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.cpu import bf16
from kgfast.kernels.cpu.passes import LossPass
from kgfast.kernels.positives import Positives
from support.flat import operands_of
from support.memory import PeakMemory
from support.tiers import needs_tier

pytestmark = needs_tier("bf16 losses")
EACH_LOSS = pytest.mark.parametrize("loss", ["bce", "bce_total", "cross_entropy"])


def _has_amx() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "amx_bf16" in flags.read_text()


def tensors_of(batch: int, rows: int, dim: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch * rows + dim)
    shapes = (batch, dim), (rows, dim), (rows,)
    return [(torch.randn(*it, generator=generator) / 2).requires_grad_() for it in shapes]


def run(loss: str, tensors: list[Tensor], targets: Tensor) -> Tensor:
    batch, rows = len(tensors[0]), len(tensors[1])
    with ops.use_backend("cpu"):
        if loss == "cross_entropy":
            return ops.cross_entropy(*tensors, targets, 0.1, "dot", precision="bf16").mean()
        labels = torch.arange(batch + 1), targets, 0.9, 0.1 / rows, "dot"
        if loss == "bce":
            return ops.bce(*tensors, *labels, precision="bf16").sum()
        return ops.bce_total(*tensors, *labels, float(batch), precision="bf16")


@EACH_LOSS
@pytest.mark.parametrize("shape", [(45, 3000, 40), (5, 700, 100), (300, 90, 33)], ids=str)
def test_threads_change_no_bit(loss, shape):
    tensors = tensors_of(*shape)
    targets = torch.arange(shape[0]) * 7 % shape[1]
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            total = run(loss, tensors, targets)
            found.append([total.detach(), *torch.autograd.grad(total, tensors)])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@EACH_LOSS
def test_what_is_not_asked_for_changes_no_bit(loss):
    tensors = tensors_of(40, 900, 48)
    targets = torch.arange(40) * 20
    everything = torch.autograd.grad(run(loss, tensors, targets), tensors)
    for place, whole in enumerate(everything):
        leaves = [it.detach().requires_grad_(i == place) for i, it in enumerate(tensors)]
        (alone,) = torch.autograd.grad(run(loss, leaves, targets), leaves[place])
        assert torch.equal(alone, whole)


@EACH_LOSS
def test_blocks_of_queries_add_up(loss):
    """More queries than are swept together."""
    tensors = tensors_of(1100, 70, 9)
    targets = torch.arange(1100) % 70
    gradients = torch.autograd.grad(run(loss, tensors, targets), tensors)
    parts = slice(0, 1024), slice(1024, 1100)
    sums = [torch.zeros_like(it) for it in tensors]
    for part in parts:
        queries = tensors[0].detach()[part].requires_grad_()
        leaves = [queries, *tensors[1:]]
        share = 1 if loss == "bce" else len(queries) / 1100
        total = run(loss, leaves, targets[part]) * share
        found = torch.autograd.grad(total, leaves)
        sums[0][part] = found[0]
        sums[1] += found[1]
        sums[2] += found[2]
    for got, want in zip(gradients, sums, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2 * float(want.abs().max()))


@EACH_LOSS
def test_candidates_may_be_permuted(loss):
    """Each is in one block, whichever: rows that swap blocks swap their gradients."""
    queries, table, bias = tensors_of(20, 2100, 24)
    targets = torch.arange(20) * 100
    order = torch.randperm(2100, generator=torch.Generator().manual_seed(0))
    mixed = [queries, *(it.detach()[order].requires_grad_() for it in (table, bias))]
    plain = run(loss, [queries, table, bias], targets)
    other = run(loss, mixed, order.argsort()[targets])
    torch.testing.assert_close(plain, other, rtol=1e-6, atol=1e-6)
    got = torch.autograd.grad(other, mixed)
    want = torch.autograd.grad(plain, [queries, table, bias])
    for one, right in zip(got, (want[0], want[1][order], want[2][order]), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))


@pytest.mark.parametrize("loss", ["bce_total", "cross_entropy"])
@pytest.mark.parametrize(("batch", "rows", "dim"), [(256, 131_072, 2), (1024, 2000, 600)])
def test_memory_stays_below_64_mib(loss, batch, rows, dim):
    """Many candidates, whose dense scores alone would take 128 MiB, and many features."""
    targets = torch.arange(batch)
    run(loss, tensors_of(40, 90, 8), targets[:40]).backward()  # a first call makes buffers
    tensors = tensors_of(batch, rows, dim)
    with PeakMemory("cpu") as peak:
        run(loss, tensors, targets).backward()
    assert peak.bytes < sum(4 * it.numel() for it in tensors) + (64 << 20)


@pytest.mark.skipif(_has_amx(), reason="AMX sums in another order")
@pytest.mark.parametrize("dim", [1, 32, 77])
def test_sums_of_a_score_are_in_their_order(dim):
    """`engine/bf16_vector.h`: of each two terms the second is added first, each rounded once."""
    queries, table, _ = (it.detach() for it in tensors_of(33, 40, dim))
    targets = torch.arange(33) * 3 % 40
    operands = operands_of(queries, table, "dot")
    found = bf16._sweep(LossPass.SOFTPLUS_SUMS, operands, Positives.of_targets(targets)).picked
    width = dim + dim % 2
    pairs = torch.zeros(33, width, dtype=torch.float64)
    pairs[:, :dim] = queries.bfloat16().double() * table[targets].bfloat16().double()
    sums = torch.zeros(33, dtype=torch.float32)
    for first in range(0, width, 2):
        for term in (first + 1, first):
            sums = (sums.double() + pairs[:, term]).float()
    assert torch.equal(found, sums)
