"""The code of the sweeps behind ranks and the best k, compiled for what the launcher really passes.

Needs no GPU: launches are recorded, compiled for an architecture, and their SASS is read. Many
queries are swept packed, few ones in place.
"""

import dataclasses
import itertools
import re
from unittest.mock import patch

import pytest
import torch

from kgfast.kernels.scores import get_score
from support.flat import triton
from support.triton_code import ARCHS, BATCHES, compiled, not_read, on_each_arch, only

pytest.importorskip("triton")
from triton.compiler.errors import CompilationError

from kgfast.kernels.triton.host import split
from support import aot

pytestmark = [not_read, compiled]

SUM_BLOCK = 64
STEP = 64  # features that a program takes at a time where it sweeps in place


def recorded(
    score: str,
    batch: int,
    *,
    arch: int,
    dtype=torch.float32,
    options: bool = False,
    has_factor: bool = False,
    k: int = 0,
):
    """Return the launches of small ranks, or of the best k; 14,541 candidates make tails."""
    rows, facts = 14_541, get_score(score)
    table = torch.empty(rows, 100 * facts.planes, dtype=dtype)
    queries = torch.empty(batch, 100 * facts.query_planes(has_factor)).to(
        torch.promote_types(dtype, torch.float32)
    )
    given = {
        "bias": torch.empty(rows, dtype=dtype) if options else None,
        "candidate_ids": torch.arange(rows - 1) if options else None,
        "factor": torch.empty(rows, 100, dtype=dtype) if has_factor else None,
    }
    known, none = torch.arange(batch + 1), torch.zeros(batch, dtype=torch.int64)
    with aot.recorded(arch) as launches:
        if k:
            triton.topk(queries, table, k, known, none, score, **given)
        else:
            triton.rank_counts(queries, table, none, known, none, score, **given)
    return launches


def recorded_in_float32(score: str, batch: int, **options):
    """Do what :func:`recorded` does on a device whose tensor cores lose too much."""
    with patch.object(split, "holds", lambda device: False):
        return recorded(score, batch, **options)


def elements_of(launch, lanes: int = 32) -> int:
    """Elements that a thread accumulates per feature."""
    threads = lanes * launch.options["num_warps"]
    return int(launch.tile.rows) * int(launch.tile.lanes) // threads


OF_SCORES = on_each_arch("rotate", "dot", slow=["l1", "l2", "rscf_rotate", "rscf_l1", "rscf_l2"])
OF_AMD = [pytest.param(0, it, marks=pytest.mark.slow) for it in ("rotate", "dot", "rscf_rotate")]


@pytest.mark.parametrize(("arch", "score"), [*OF_SCORES, *OF_AMD])
def test_no_kernel_spills(score: str, arch: int) -> None:
    moves, cases = get_score(score).is_rscf, [(torch.float32, False, 0), (torch.float64, True, 9)]
    batches = BATCHES[:2] if moves else BATCHES
    for batch, (dtype, options, k) in itertools.product((*batches, 1000), cases):
        given = {"dtype": dtype, "options": options, "has_factor": moves}
        for launch in recorded(score, batch, arch=arch, k=k if batch < 1000 else 0, **given):
            code = aot.compile_for(launch, arch or "gfx942")
            spilled = 8 * (launch.name == "decide" and arch == 120)  # at most a number in float64
            assert code.stack <= spilled, (launch.name, batch, dtype)
            is_split = launch.name == "sweep_split" or bool(launch.args.get("PRODUCT"))
            most = 255 if is_split or launch.name in ("sweep_in_place", "decide") else 168
            assert code.registers <= (most if arch else 512), (launch.name, batch, dtype)
            assert code.shared <= (160 if is_split else 16) << 10, (launch.name, batch, dtype)


@pytest.mark.parametrize(
    ("arch", "case"), on_each_arch((1000, False), slow=[(1000, True), (100, False), (100, True)])
)
def test_the_rotate_loop_is_limited_by_the_square_root(arch, case) -> None:
    batch, options = case
    launch = only(recorded("rotate", batch, arch=arch, options=options), "sweep")
    elements = elements_of(launch)
    code = aot.compile_for(launch, arch)
    inner = code.inner_loop(elements)
    assert sum(count for name, count in inner.items() if "MUFU" in name) == elements
    assert inner["MUFU.SQRT"] == elements
    fold = next(loop for loop in code.loops if loop.total() > inner.total())
    slots = inner.total() / elements
    with_fold = slots + (fold.total() - inner.total()) / elements / SUM_BLOCK
    assert slots <= (7.5 if arch <= 90 else 8)
    assert with_fold <= (7.75 if arch <= 90 else 8.25)
    assert inner["LDL"] == inner["STL"] == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_a_middle_tile_loads_two_features_before_a_root(arch) -> None:
    launch = only(recorded("rotate", 100, arch=arch), "sweep")
    code, roots = aot.compile_for(launch, arch), 2 * elements_of(launch)
    loop = code.loop_of_roots(roots)
    first = next(
        address for address, text in code._code if "MUFU" in text and address > loop.span[0]
    )
    assert loop["MUFU.SQRT"] == roots
    assert aot.Loop.of(code._code, loop.span[0], first)["LDG"] == loop["LDG"] == 12
    assert (code.stack, code.registers <= 128) == (0, True)  # 16 warps a multiprocessor


FILTERED = [  # score, whether there is a factor, most slots near and far
    ("rscf_rotate", True, 24.5, 36),
    ("rscf_rotate", False, 8.5, None),
    ("rscf_l1", True, 6.5, None),
    ("rscf_l2", False, 5, None),
]


@pytest.mark.parametrize(("arch", "case"), on_each_arch(*FILTERED[:2], slow=FILTERED[2:]))
def test_filtering_sweeps(arch, case) -> None:
    score, has_factor, most, most_far = case
    cases = [(1000, torch.float32, False), (100, torch.float64, True)]
    for batch, dtype, options in cases[: 2 if arch == 90 else 1]:
        launches = recorded(
            score, batch, arch=arch, dtype=dtype, options=options, has_factor=has_factor
        )
        for launch in launches:
            spills = 8 if (arch, launch.name) == (120, "decide") else 0  # a scalar, once a program
            assert aot.compile_for(launch, arch).stack <= spills, launch.name
        launch = only(launches, "sweep")
        elements = elements_of(launch)
        loops = aot.compile_for(launch, arch).loops
        assert loops[0].total() / elements <= most
        assert loops[0]["MUFU.SQRT"] == (elements if score == "rscf_rotate" else 0)
        if most_far is not None:
            assert loops[1]["MUFU.SQRT"] == elements
            assert loops[1].total() / elements <= most_far


WORDS = {100: 0.63, 1000: 0.38}  # words that a thread loads, a pair and plane


@pytest.mark.parametrize(("arch", "score"), on_each_arch("rotate", "dot", slow=["l1", "l2"]))
def test_the_way_back_of_loads_is_not_the_limit(arch, score) -> None:
    """A warp's word takes a clock, its square root two, four of its instructions one."""
    planes = get_score(score).planes
    for batch, most in WORDS.items():
        launch = only(recorded_in_float32(score, batch, arch=arch), "sweep")
        elements = elements_of(launch)
        inner = aot.compile_for(launch, arch).inner_loop(elements)
        words = inner.words / elements
        assert words <= most * planes, batch
        if batch == 1000 and arch <= 90:  # later ones compute two at once
            roots = 2 * inner["MUFU.SQRT"] / elements
            assert words <= max(roots, 1.2 * inner.total() / elements / 4)


SPLIT_CASES = [
    ("HMMA", 80, 1000, torch.float32, False),
    ("HGMMA", 90, 1000, torch.float32, False),
    ("UTCHMMA", 100, 1000, torch.float32, False),
    *((name, arch, 50, torch.bfloat16, True) for name, arch in (("HMMA", 80), ("UTCHMMA", 100))),
    ("HGMMA", 90, 50, torch.float64, True),
]


@pytest.mark.parametrize(
    ("name", "arch", "batch", "dtype", "options"),
    [pytest.param(*case, marks=() if case[1] == 90 else pytest.mark.slow) for case in SPLIT_CASES],
)
def test_products_are_swept_by_tensor_cores(name, arch, batch, dtype, options) -> None:
    launches = recorded("dot", batch, arch=arch, dtype=dtype, options=options)
    names = [launch.name for launch in launches]
    assert (names.count("pack_parts"), names.count("sweep_split"), names.count("sweep")) == (
        2,
        1,
        0,
    )
    code = aot.compile_for(only(launches, "sweep_split"), arch)
    assert code.stack == 0
    assert code.shared <= (160 if arch in (90, 100) else 99) << 10
    inner = next(loop for loop in code.loops if loop[name])
    products = 2 if dtype == torch.bfloat16 else 3
    rows = 128 if batch > 64 else 64
    # A warp group multiplies 64 rows by 16 of 128 columns by 32 features at once, a warp 16 by 8.
    pieces = rows // 64 * 2 if name != "HMMA" else rows // 16 * 16 * 2 // 8
    assert inner[name] * (8 // 4 if name == "HGMMA" else 1) >= products * pieces // 2
    assert inner["FADD"] + inner["FADD2"] * 2 <= rows * 128 // 256
    assert inner["LDL"] == inner["STL"] == 0
    assert inner["BAR"] <= (5 if arch == 100 else 2)
    # sm_100's instructions do not tell how much they multiply; others multiply nothing twice
    if arch != 100:
        assert inner.products.total() * 8 == products * rows * 128 * 32
    assert aot.compile_for(only(launches, "pack_parts"), arch).stack == 0
    with aot.recorded(arch) as launches:
        split.largest_loss(torch.device("cpu"))
    probe = aot.compile_for(only(launches, "store_products"), arch)
    assert probe.operations[name]
    assert probe.stack == 0


@pytest.mark.parametrize(
    ("score", "batch", "arch", "name"),
    [("dot", 16, 90, "sweep_in_place"), ("dot", 99, 0, "sweep"), ("l2", 99, 90, "sweep")],
)
def test_what_tensor_cores_do_not_sweep(score, batch, arch, name) -> None:
    names = {launch.name for launch in recorded(score, batch, arch=arch)}
    assert names & {"sweep_split", "sweep", "sweep_in_place"} == {name}


def test_tensor_cores_that_lose_too_much_sweep_nothing() -> None:
    names = {launch.name for launch in recorded_in_float32("dot", 99, arch=90)}
    assert "sweep" in names
    assert not names & {"sweep_split", "pack_parts", "store_products"}


@pytest.mark.parametrize(("arch", "score"), on_each_arch("rotate", "dot"))
def test_warps_never_part_before_a_barrier(arch, score) -> None:
    """No branch may hang on a scalar that each warp loads for itself while others write it."""
    launches = recorded(score, 1000, arch=arch, dtype=torch.float64, options=True)
    for launch in launches:
        if launch.options["num_warps"] > 1:
            ttir = aot.compile_for(launch, arch).asm["ttir"]
            assert not re.search(r"tt\.load .* : !tt\.ptr<", ttir), launch.name


def test_panels_are_aligned_for_a_table_of_any_size() -> None:
    launch = only(recorded("rotate", 1000, arch=90), "sweep")
    packed = list(launch.args).index("packed")
    assert {(packed, i) for i in range(4)} <= set(aot.specialisation(launch).aligned)
    assert {size % 16 for size in launch.tile[:2]} == {0}


def test_sizes_do_not_compile_a_kernel_anew() -> None:
    def keys(batch: int):
        return {
            (launch.name, str(aot.specialisation(launch)))
            for launch in recorded("rotate", batch, arch=90)
        }

    assert keys(1000) == keys(1024) == keys(999)


@pytest.mark.parametrize("score", ["rotate", "dot", "rscf_rotate"])
def test_few_queries_compile_one_kernel_beside_that_of_one_query(score) -> None:
    ways = {}
    for batch in range(1, 17):
        launches = recorded(score, batch, arch=90)
        for name in {launch.name for launch in launches}:
            keys = {str(aot.specialisation(it)) for it in launches if it.name == name}
            ways.setdefault(name, {})[batch] = keys
    in_place = ways.pop("sweep_in_place")
    assert not in_place[1] & in_place[2]
    assert len(in_place[16]) == 1
    assert all(in_place[batch] == in_place[16] for batch in range(2, 17))
    assert all(keys == of[1] for of in ways.values() for keys in of.values())


@pytest.mark.parametrize(
    ("arch", "score"), on_each_arch("rotate", "dot", "rscf_rotate", slow=["l1", "l2", "rscf_l1"])
)
def test_canonical_code_is_not_fused(arch, score) -> None:
    for dtype, k in ((torch.float64, 0), (torch.float32, 5)):
        given = {"dtype": dtype, "options": True, "has_factor": get_score(score).is_rscf}
        launches = recorded(score, 100, arch=arch, k=k, **given)
        canonical = [it for it in launches if it.name == "decide"]
        assert len(canonical) >= 2  # targets or first limits, and pairs of a band
        for launch in canonical:
            has_root = score in ("l2", "rotate", "rscf_rotate")
            assert_unfused(aot.compile_for(launch, arch).ptx, has_root)


def assert_unfused(ptx: str, has_root: bool) -> None:
    assert not re.search(r"\b(fma|mad)\.\S*f64", ptx)
    assert "ftz" not in ptx
    assert ".approx" not in ptx
    assert set(re.findall(r"\bsqrt\.\S+", ptx)) == ({"sqrt.rn.f64"} if has_root else set())
    for operation in re.findall(r"\b(?:add|sub|mul)\.\S*f64", ptx):
        assert operation.split(".")[1] == "rn"


@pytest.mark.parametrize(
    ("arch", "case"), on_each_arch(("rotate", 16, 4), ("dot", 8, 0), slow=[("l1", 8, 0)])
)
def test_canonical_loads_of_a_block_come_before_its_first_sum(arch, case) -> None:
    """Lanes of a warp share the roots of 32 features of four pairs; only sums are in order."""
    score, loads, roots = case
    for launch in (it for it in recorded(score, 100, arch=arch) if it.name == "decide"):
        code = aot.compile_for(launch, arch)
        inner = next(loop for loop in code.loops if loop["LDG"] and loop["DADD"] >= 32)
        assert (inner["LDG"], inner["MUFU.RSQ64H"], inner["BAR"]) == (loads, roots, 1)
        first = inner.order.index("MUFU.RSQ64H" if roots else "BAR")  # terms meet at the barrier
        assert "LDG" not in inner.order[first:]
        assert code.registers <= 168
        assert code.stack == 0


@pytest.mark.slow
@pytest.mark.parametrize(("score", "roots"), [("rotate", 14), ("dot", 0), ("rscf_rotate", 14)])
def test_canonical_code_of_amd_is_not_fused(score, roots) -> None:
    """A correctly rounded double root has seven products with sums; a lane has two roots."""
    given = {"dtype": torch.float64, "has_factor": get_score(score).is_rscf}
    launches = recorded(score, 1000, arch=0, **given)
    for launch in (it for it in launches if it.name == "decide"):
        asm = aot.compile_for(launch, "gfx942").asm["amdgcn"]
        assert len(re.findall(r"\bv_fma\w*_f64", asm)) == roots


@pytest.mark.parametrize("name", ["sweep", "decide"])
def test_a_term_that_nobody_wrote_does_not_compile(name) -> None:
    launch = only(recorded("l2", 100, arch=90), name)
    form = launch.args["FORM"]._replace(term=9)
    with pytest.raises(CompilationError) as error:
        aot.compile_for(dataclasses.replace(launch, args={**launch.args, "FORM": form}), 90)
    assert "of this term" in str(deepest(error.value))


def deepest(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else deepest(error.__cause__)


def elements_in_place(launch) -> int:
    """Elements of a step that a thread has: features of each of its queries and candidates."""
    rows, lanes = launch.tile[:2]
    return int(rows) * int(lanes) * STEP // (32 * launch.options["num_warps"])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("batch", "most", "words"), [(1, 14, 2.25), (16, 8, 0.5)])
def test_the_rotate_loop_in_place(arch, batch, most, words) -> None:
    """Bytes limit one query: 14 slots for each of 3.5 words a clock. Roots limit eight queries."""
    launch = only(recorded("rotate", batch, arch=arch), "sweep_in_place")
    code = aot.compile_for(launch, arch)
    elements = elements_in_place(launch)
    inner = next(loop for loop in code.loops if loop["MUFU.SQRT"])
    assert inner["MUFU.SQRT"] == elements
    assert inner.total() / elements <= most
    assert code.stack == 0
    assert inner["LDG"] / elements <= words  # the table, once for all queries, and the queries


@pytest.mark.parametrize("batch", [1, 16])
def test_few_queries_fill_the_machine(batch) -> None:
    """At least a program for each of 132 multiprocessors, of 4 warps."""
    assert only(recorded("rotate", batch, arch=90), "sweep_in_place").grid[1] >= 8 * 100
