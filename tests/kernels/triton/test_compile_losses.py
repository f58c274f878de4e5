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
from support.triton_code import on_each_arch, only

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


PULL = {"pull", "add_stripes"}
OWN = {"score_tiles", "gather_scores", "backward_lists", "add_pieces", "score_survivors"}
CASES = {  # those that need most registers; other scores do less of the same
    "rotate": (100, torch.float32, True, {"collect"} | PULL),
    "many of rotate": (1000, torch.float32, False, {"collect"} | PULL),
    "one of rotate": (1, torch.float16, True, PULL),
    "l2": (1000, torch.bfloat16, True, {"collect"} | PULL),
    "dot": (100, torch.float32, True, set()),
}


@pytest.mark.parametrize(("arch", "has_factor"), on_each_arch(False, slow=[True]))
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
    assert names >= {"backward_lists", "pack_moved", "describe_moves"} | PULL
    sides = {launch.args["SIDE"].of_queries for launch in launches if "SIDE" in launch.args}
    assert sides == {False, True}
    elements = pull_elements(only(launches, "pull"))
    slots, _, _ = loop_of(only(launches, "pull"), arch, elements)
    assert slots <= (64 if has_factor else 20)  # 98 and 30 where each side was pulled


@pytest.mark.parametrize(
    ("arch", "case"),
    on_each_arch("rotate", "dot", slow=["many of rotate", "one of rotate", "l2"]),
)
def test_no_kernel_spills(case: str, arch: int) -> None:
    batch, dtype, options, others = CASES[case]
    names = set()
    for launch in recorded(case.split()[-1], batch, arch=arch, dtype=dtype, options=options):
        if launch.name not in OWN | PULL | {"collect"}:  # test_compile.py and _in_place.py
            continue
        names.add(launch.name)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch.name
        assert code.registers <= (255 if launch.name == "pull" else 168), launch.name
        assert code.shared <= 16 << 10, launch.name
    assert names == OWN | others


def pull_elements(launch) -> int:
    """Elements a lane of the innermost loop."""
    tile = launch.tile
    return tile.rows * tile.features // 32


FEWEST = {"rotate": 12.5, "rotate_interleaved": 12.5, "l1": 8, "l2": 5}


@pytest.mark.parametrize(
    ("arch", "score"),
    on_each_arch("rotate", slow=["l1", "l2", "rotate_interleaved"]),
)
def test_both_sides_are_pulled_at_once(score, arch) -> None:
    """18.4 slots of rotate where each side is pulled, 12 of l1, 5.8 of l2."""
    is_halved = arch >= 100 and get_score(score).planes == 2  # 16 rows a lane: of 32 some spill
    dtype = torch.bfloat16 if score == "rotate_interleaved" else torch.float32
    launch = only(recorded(score, 1000, arch=arch, dtype=dtype), "pull")
    elements = pull_elements(launch)
    assert elements == (16 if is_halved else 32)
    slots, roots, inner = loop_of(launch, arch, elements)
    assert slots <= FEWEST[score] + 1.6 * (arch >= 100)
    assert roots == inner["MUFU.RSQ"] / elements == score.startswith("rotate")
    assert inner["SHFL"] == 3 * get_score(score).planes  # eight lanes share a feature
    assert inner["BAR"] <= 1
    assert inner["LDS"] <= elements // 4


@pytest.mark.parametrize(
    ("batch", "score"), [(1, "rotate"), (512, "rotate"), (5000, "rotate"), (100, "rscf_rotate")]
)
def test_a_pull_stays_in_its_room(score, batch) -> None:
    from kgfast.kernels.triton.host import pull

    with aot.recorded(90) as launches:
        for others in (5, 300, 30_000):
            facts, has_factor = get_score(score), score.startswith("rscf")
            planes = facts.query_planes(has_factor)
            queries = torch.empty(1, 200 * planes).expand(batch, -1)
            table = torch.empty(1, 200 * facts.planes).expand(others, -1)
            factor = torch.empty(1, 200).expand(others, -1) if has_factor else None
            grad = torch.empty(1, 1).expand(batch, others)
            launches.clear()
            triton.pairwise_backward(grad, queries, table, score, factor)
            for launch in launches:
                if launch.name == "pull":
                    warps, rows = math.prod(launch.grid), launch.args["num_queries"]
                    tile, partial = launch.tile, launch.args["pulled"].partial
                    assert partial.numel() * 4 <= pull.PARTIAL_BYTES
                    stripes = min(-(-others // tile.rows), 1056 * 4 // 200 // 2)
                    columns = -(-200 // tile.features)
                    assert warps >= columns * stripes
                    assert warps <= pull.PROGRAMS + columns
                    assert partial.numel() >= columns * tile.features * planes * rows


@pytest.mark.parametrize(
    ("arch", "case"), on_each_arch((1000, False), slow=[(1, True), (100, True)])
)
def test_the_rotate_forward_is_limited_by_the_square_root(arch, case) -> None:
    batch, options = case
    for name in ("score_tiles", "collect") if batch > 1 else ("score_tiles",):
        launch = only(recorded("rotate", batch, arch=arch, options=options), name)
        threads = 32 * launch.options["num_warps"]
        elements = launch.tile.rows * launch.tile.lanes // threads
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
