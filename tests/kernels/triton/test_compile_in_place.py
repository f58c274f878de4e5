"""The code of the sweep of few queries, compiled as test_compile.py compiles the others."""

import itertools
import os
import re

import pytest
import torch

from kgfast.kernels.scores import get_score
from support.flat import triton
from support.triton_code import ARCHS, only

pytest.importorskip("triton")

import aot

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)
STEP = 64  # features


def in_place(score: str, batch: int, *, arch: int, dims=None, moves=False, **options):
    """The launch of a small ``rank_counts`` of few queries; 14,541 candidates."""
    rows, facts = 14_541, get_score(score)
    dtype = options.get("dtype", torch.float32)
    width = 100 * facts.query_planes(moves)
    has_bias = options.get("has_bias", False)
    with aot.recorded(arch) as launches:
        triton.rank_counts(
            torch.empty(batch, width, dtype=torch.promote_types(dtype, torch.float32)),
            torch.empty(rows, 100 * facts.planes, dtype=dtype),
            torch.zeros(batch, dtype=torch.int64),
            torch.arange(batch + 1),
            torch.zeros(batch, dtype=torch.int64),
            score,
            bias=torch.empty(rows) if has_bias else None,
            factor=torch.empty(rows, 100) if moves else None,
            dims=dims,
        )
    names = {launch.name for launch in launches}
    assert not names & {"sweep", "sweep_crops", "collect"}
    assert "pack" not in names or score == "dot" or dtype == torch.float64  # norms of the queries
    return only(launches, "sweep_in_place")


def elements_of(launch) -> int:
    """Elements of a step that a thread has: features of each of its queries and candidates."""
    rows, lanes = launch.tile
    return int(rows) * int(lanes) * STEP // (32 * launch.options["num_warps"])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("batch", "most", "words"), [(1, 14, 2.25), (16, 7.75, 0.375)])
def test_the_rotate_loop(arch, batch, most, words) -> None:
    """Bytes limit one query: 14 slots for each of 3.5 words a clock. Roots limit sixteen."""
    launch = in_place("rotate", batch, arch=arch)
    code = aot.compile_for(launch, arch)
    elements = elements_of(launch)
    inner = next(loop for loop in code.loops if loop["MUFU.SQRT"])
    assert inner["MUFU.SQRT"] == elements
    assert inner.total() / elements <= most
    assert code.stack == 0
    assert inner["LDG"] / elements <= words  # of the table, once for all queries, and of these


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(
    "score", ["rotate", "dot", "l1", "l2", "rscf_rotate", "rscf_l1", "rscf_l2"]
)
def test_no_spills(arch, score) -> None:
    moves = get_score(score).is_rscf
    cases = itertools.product((1, 2, 4, 8, 16), ((torch.float32, None), (torch.float64, [50, 100])))
    for batch, (dtype, dims) in cases:
        options = {"dtype": dtype, "has_bias": dims is not None}
        launch = in_place(score, batch, arch=arch, dims=dims, moves=moves, **options)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, (batch, dtype, code.stack)
        assert code.shared <= 16 << 10


def test_dot_with_all_options_does_not_spill() -> None:
    launch = in_place("dot", 16, arch=90, dtype=torch.float16, has_bias=True)
    code = aot.compile_for(launch, 90)
    assert code.stack == 0
    scalars = re.findall(r"tt\.load (%\w+) : !tt\.ptr<", code.asm["ttir"])
    assert len(scalars) <= 2  # a crop's width and its bound: read only, so that warps agree


def test_few_queries_fill_the_machine() -> None:
    """At least a program for each of 132 multiprocessors, of 4 warps; one launch for 10^6 rows."""
    for batch in (1, 16):
        assert in_place("rotate", batch, arch=90).grid[1] >= 8 * 100
    from kgfast.kernels.triton.host import configs, few

    for batch in (1, 4):
        assert configs.MAX_GRID * few.tile_for(get_score("rotate"), batch, 90).candidates > 10**6


@pytest.mark.slow
@pytest.mark.parametrize("score", ["rotate", "dot", "rscf_rotate"])
def test_amd_code(score) -> None:
    for batch in (1, 4, 16):
        code = aot.compile_for(in_place(score, batch, arch=0), "gfx942")
        assert code.stack == 0, batch
        assert code.registers <= 512, batch


@pytest.mark.parametrize(("score", "batch"), [("rotate", 1), ("dot", 9)])
def test_the_best_are_swept_in_place(score, batch) -> None:
    facts = get_score(score)
    with aot.recorded(90) as launches:
        triton.topk(
            torch.empty(batch, 100 * facts.planes),
            torch.empty(14_541, 100 * facts.planes),
            10,
            score=score,
        )
    launch = only(launches, "sweep_in_place")
    assert launch.args["tally"].greater is None
    assert aot.compile_for(launch, 90).stack == 0
