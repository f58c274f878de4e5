"""The code of the kernels of scores, gradients and top-k, compiled ahead of time.

As in test_compile.py: launches are recorded, compiled for an architecture with what the
launcher really passes, and their SASS is read. Needs no GPU.
"""

import math
import os
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kgfast.kernels.scores import get_score
from support.flat import triton
from support.triton_code import ARCHS, on_each_arch, only

pytest.importorskip("triton")
import aot

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)


def recorded(score: str, batch: int, *, arch: int, dtype=torch.float32, options: bool = False):
    """Launches of every operator; sizes that no tile divides."""
    width = 100 * get_score(score).planes
    queries, table = torch.empty(batch, width), torch.empty(2_041, width, dtype=dtype)
    bias = torch.empty(len(table), dtype=dtype) if options else None
    dims = [50, 100] if options else None
    index = torch.zeros(batch, 300 if options else 33, dtype=torch.int64)
    with aot.recorded(arch) as launches:
        grad = triton.pairwise_scores(queries, table, score, bias, None, dims)
        triton.pairwise_backward(grad, queries, table, score, None, dims)
        grad = triton.indexed_scores(queries, table, index, score, bias, None, dims)
        triton.indexed_backward(grad, queries, table, index, score, None, dims)
        triton.topk(queries, table, 5, score=score, bias=bias, dims=dims)
    return launches


def loop_of(launch, arch: int, elements: int):
    """Issue slots and square roots an element of the innermost loop."""
    code = aot.compile_for(launch, arch)
    inner = code.inner_loop(elements)
    assert inner["LDL"] == inner["STL"] == 0
    roots = sum(count for name, count in inner.items() if "MUFU" in name)
    return inner.total() / elements, roots / elements, inner


OWN = {"score_tiles", "backward", "gather_scores", "backward_lists", "add_pieces", "collect"}
CASES = {  # those that need most registers; other scores do less of the same
    "rotate": ((1, torch.float16, True), (100, torch.float32, True), (1000, torch.float32, False)),
    "l2": ((1000, torch.bfloat16, True),),
    "dot": ((100, torch.float32, True),),
}


@pytest.mark.parametrize(("arch", "has_factor"), on_each_arch(True, False))
def test_filtering_kernels_do_not_spill(arch, has_factor) -> None:
    facts = get_score("rscf_rotate")
    queries, table = torch.empty(1000, 100 * facts.query_planes(has_factor)), torch.empty(2041, 200)
    factor = torch.empty(2041, 100) if has_factor else None
    index = torch.zeros(1000, 33, dtype=torch.int64)
    with aot.recorded(arch) as launches:
        grad = triton.pairwise_scores(queries, table, facts.name, None, factor)
        triton.pairwise_backward(grad, queries, table, facts.name, factor)
        grad = triton.indexed_scores(queries, table, index, facts.name, None, factor)
        triton.indexed_backward(grad, queries, table, index, facts.name, factor)
        triton.topk(queries, table, 5, score=facts.name, factor=factor)
    for launch in launches:
        assert aot.compile_for(launch, arch).stack == 0, launch.name
    names = {launch.name for launch in launches}
    assert names >= {"backward", "backward_lists", "pack_moved", "describe_moves"}
    sides = {launch.args["SIDE"].of_queries for launch in launches if "SIDE" in launch.args}
    assert sides == {False, True}


@pytest.mark.parametrize(("arch", "score"), on_each_arch(*CASES))
def test_no_kernel_spills(score: str, arch: int) -> None:
    names = set()
    for batch, dtype, options in CASES[score]:
        for launch in recorded(score, batch, arch=arch, dtype=dtype, options=options):
            if launch.name in ("pack", "describe"):  # test_compile.py
                continue
            names.add(launch.name)
            code = aot.compile_for(launch, arch)
            assert code.stack == 0, (launch.name, batch, dtype)
            assert code.registers <= 168, (launch.name, batch, dtype)
            assert code.shared <= 16 << 10, (launch.name, batch, dtype)
    assert names == (OWN | {"score_survivors"}) - ({"backward"} if score == "dot" else set())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("score", "dtype"), [("rotate", torch.float32), ("rotate_interleaved", torch.bfloat16)]
)
def test_the_rotate_backward_is_ten_slots_an_element(score, arch, dtype) -> None:
    launches = recorded(score, 1000, arch=arch, dtype=dtype)
    launches = [launch for launch in launches if launch.name == "backward"]
    assert len(launches) == 2  # one for each side
    for launch in launches:
        elements = launch.args["SIDE"].rows * launch.args["SIDE"].features // 32
        slots, roots, inner = loop_of(launch, arch, elements)
        assert slots <= 10  # the goal is 11; 9.2 is what stands in backward.py
        assert roots == 1
        assert inner["MUFU.RSQ"] == elements
        assert inner["SHFL"] == inner["BAR"] == inner["LDS"] == 0


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("batch", "options"), [(1, True), (100, True), (1000, False)])
def test_the_rotate_forward_is_limited_by_the_square_root(arch, batch, options) -> None:
    for name in ("score_tiles", "collect"):
        launch = only(recorded("rotate", batch, arch=arch, options=options), name)
        threads = 32 * launch.options["num_warps"]
        elements = math.prod(launch.args["TILE"]) // threads
        slots, roots, _ = loop_of(launch, arch, elements)
        assert slots <= 8
        assert roots == 1


def test_gathers_are_limited_by_memory() -> None:
    """A gathered element of rotate is 8 bytes: 13 slots at 8 bytes a clock and multiprocessor."""
    launches = recorded("rotate", 100, arch=90)
    slots, roots, _ = loop_of(only(launches, "gather_scores"), 90, 16)
    assert slots <= 13
    assert roots == 1
    for launch in launches:
        if launch.name == "backward_lists":
            slots, roots, _ = loop_of(launch, 90, 8)
            assert slots <= 24
            assert roots == 1


@pytest.mark.parametrize(("arch", "score"), on_each_arch("dot", "rotate"))
def test_survivors_are_scored_without_fusion(arch, score) -> None:
    launch = only(recorded(score, 100, arch=arch, options=True), "score_survivors")
    ptx = aot.compile_for(launch, arch).ptx
    assert not re.search(r"\b(fma|mad)\.\S*f64", ptx)
    assert "ftz" not in ptx
    assert ".approx" not in ptx


def test_sizes_do_not_compile_a_kernel_anew() -> None:
    def keys(batch: int):
        return {
            (launch.name, str(aot.specialisation(launch)))
            for launch in recorded("rotate", batch, arch=90)
        }

    assert keys(1000) == keys(1024) == keys(999)


@pytest.mark.slow
def test_amd_code() -> None:
    for launch in recorded("rotate", 1000, arch=0, options=True):
        if launch.name in OWN:
            try:
                code = aot.compile_for(launch, "gfx942")
            except RuntimeError as error:
                pytest.skip(f"Triton does not compile for gfx942 here: {error}")
            assert code.stack == 0, launch.name
            assert code.registers <= 256, launch.name


@pytest.mark.parametrize("score", ["dot", "l2", "rotate"])
def test_the_host_never_waits_for_pairs(score) -> None:
    width = 4 * get_score(score).planes
    queries, table = torch.empty(5, width), torch.empty(300, width, dtype=torch.float16)
    index = torch.zeros(5, 7, dtype=torch.int64)
    with aot.recorded(90), _NoReading():
        grad = triton.pairwise_scores(queries, table, score, table[:, 0], None, [3, 4])
        triton.pairwise_backward(grad, queries, table, score, None, [3, 4])
        grad = triton.indexed_scores(queries, table, index, score)
        triton.indexed_backward(grad, queries, table, index, score, need=(True, False, False))


class _NoReading(TorchDispatchMode):
    """Fails at an operation that makes the host wait for the device."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.waits:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "others"), [(16, 40_943), (512, 1024), (4096, 512), (1, 5)])
def test_gradients_fill_the_machine_in_bounded_scratch(rows, others) -> None:
    from kgfast.kernels.triton.host import gradients

    grad = torch.zeros(rows, 1024)
    accumulator = gradients.GradAccumulator(grad)
    programs = -(-rows // 16) * (512 // 32)
    target = accumulator.splits(programs, others)
    assert target.numel() * 4 <= max(gradients.PARTIAL_BYTES, grad.numel() * 4)
    least = min(2000, programs * (others // 128 or 1))  # warps; a split has 64 rows at least
    room = gradients.PARTIAL_BYTES // (8 * grad.numel())
    assert len(target) * programs >= min(least, programs * max(1, room))
