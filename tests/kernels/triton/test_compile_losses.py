"""The code of scores, losses and their gradients, compiled for what the launcher really passes.

As in test_compile_sweeps.py: launches are recorded, compiled, and their SASS is read.
"""

import math
from dataclasses import replace

import pytest
import torch

from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed, LossRows
from kgfast.kernels.scores import get_score
from support.flat import operands_of, triton
from support.triton_code import ARCHS, compiled, not_read, on_each_arch, only

pytest.importorskip("triton")
from kgfast.kernels.triton.host.configs import GEFORCE
from support import aot

pytestmark = [not_read, compiled]

PULL = {"pull", "add_parts"}
OF_PAIRS = {"score_tiles", "multiply_slopes", "gather_scores", "backward_lists"}
OF_LOSSES = {"make_keys", "tile_losses", "multiply_slopes", "finish"}
TENSOR_CORES = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
slow = pytest.mark.slow


def pairs_recorded(
    score: str, batch: int, *, arch: int, dtype=torch.float32, options: bool = False
):
    """Return launches of scores and gradients of pairs; sizes that no tile divides."""
    facts = get_score(score)
    queries = torch.empty(batch, 100 * facts.query_planes(facts.is_rscf))
    table = torch.empty(2_041, 100 * facts.planes, dtype=dtype)
    bias = torch.empty(len(table), dtype=dtype) if options else None
    factor = torch.empty(len(table), 100) if facts.is_rscf else None
    dims = [50, 100] if options else None
    index = torch.zeros(batch, 300 if options else 33, dtype=torch.int64)
    with aot.recorded(arch) as launches:
        grad = triton.pairwise_scores(queries, table, score, bias, factor, dims)
        triton.pairwise_backward(grad, queries, table, score, factor, dims)
        grad = triton.indexed_scores(queries, table, index, score, bias, factor, dims)
        triton.indexed_backward(grad, queries, table, index, score, factor, dims)
    return launches


def loop_of(launch, arch: int, elements: int):
    """Issue slots and square roots an element of the innermost loop."""
    code = aot.compile_for(launch, arch)
    inner = code.inner_loop(elements)
    assert inner["LDL"] == inner["STL"] == 0
    roots = sum(count for name, count in inner.items() if "MUFU" in name)
    return inner.total() / elements, roots / elements, inner


PAIRS = {  # kernels that need most registers; other scores do less of the same
    "rotate": (100, torch.float32, True),
    "many of rotate": (1000, torch.float32, False),
    "one of rotate": (1, torch.float16, True),
    "l2": (1000, torch.bfloat16, True),
    "dot": (100, torch.float32, True),
    "rscf_rotate": (1000, torch.float32, False),
}


@pytest.mark.parametrize(
    ("arch", "case"),
    [
        *on_each_arch("rotate", "dot", "rscf_rotate"),
        *on_each_arch(slow=["many of rotate", "one of rotate", "l2"]),
        *(pytest.param(0, case, marks=slow) for case in ("many of rotate", "dot")),
    ],
)
def test_no_kernel_of_pairs_spills(case: str, arch: int) -> None:
    """Kernels of sweeps: test_compile_sweeps.py."""
    batch, dtype, options = PAIRS[case]
    names = set()
    for launch in pairs_recorded(case.split()[-1], batch, arch=arch, dtype=dtype, options=options):
        if launch.name not in OF_PAIRS | PULL:
            continue
        names.add(launch.name)
        code = aot.compile_for(launch, arch or "gfx942")
        assert code.stack == 0, launch.name
        is_large = launch.name in ("pull", "multiply_slopes") or not arch
        assert code.registers <= (256 if is_large else 168), launch.name
        assert code.shared <= (64 if is_large else 16) << 10, launch.name
    assert names >= {"gather_scores", "backward_lists"}
    assert names & {"pull", "multiply_slopes"}


def pull_elements(launch) -> int:
    """Elements a lane of the innermost loop."""
    tile = launch.tile
    return tile.rows * tile.features // 32


FEWEST = {"rotate": 12.5, "rotate_interleaved": 12.5, "l1": 8, "l2": 5, "rscf_rotate": 64}


@pytest.mark.parametrize(
    ("arch", "score"),
    on_each_arch("rotate", slow=["l1", "l2", "rotate_interleaved", "rscf_rotate"]),
)
def test_both_sides_are_pulled_at_once(score, arch) -> None:
    """18.4 slots of rotate where each side is pulled, 12 of l1, 5.8 of l2."""
    is_halved = arch >= 100 and get_score(score).planes == 2  # 16 rows a lane: of 32 some spill
    dtype = torch.bfloat16 if score == "rotate_interleaved" else torch.float32
    launch = only(pairs_recorded(score, 1000, arch=arch, dtype=dtype), "pull")
    elements = pull_elements(launch)
    slots, roots, inner = loop_of(launch, arch, elements)
    assert slots <= FEWEST[score] + 1.6 * (arch >= 100)
    if get_score(score).is_rscf:
        return
    assert elements == (16 if is_halved else 32)
    assert roots == inner["MUFU.RSQ"] / elements == score.startswith("rotate")
    assert inner["SHFL"] == 3 * get_score(score).planes  # eight lanes share a feature
    assert inner["BAR"] <= 1
    assert inner["LDS"] <= elements // 4


@pytest.mark.parametrize(
    ("arch", "case"), on_each_arch((1000, False), slow=[(1, True), (100, True)])
)
def test_the_rotate_forward_is_limited_by_the_square_root(arch, case) -> None:
    batch, options = case
    launch = only(pairs_recorded("rotate", batch, arch=arch, options=options), "score_tiles")
    elements = launch.tile.rows * launch.tile.lanes // (32 * launch.options["num_warps"])
    slots, roots, _ = loop_of(launch, arch, elements)
    assert slots <= 8
    assert roots == 1


def test_gathers_are_limited_by_memory() -> None:
    """A gathered element of rotate is 8 bytes: 13 slots at 8 bytes a clock and multiprocessor."""
    launches = pairs_recorded("rotate", 100, arch=90)
    slots, roots, _ = loop_of(only(launches, "gather_scores"), 90, 16)
    assert slots <= 13
    assert roots == 1
    for launch in launches:
        if launch.name == "backward_lists":
            slots, roots, _ = loop_of(launch, 90, 8)
            assert slots <= 24
            assert roots == 1


def losses_recorded(
    score: str,
    arch: int,
    dtype: torch.dtype = torch.float32,
    batch: int = 512,
    dim: int = 100,
    precision: str = "float32",
) -> list:
    """Each of the losses' own kernels, once for each way it is compiled.

    Kernels of a value with its gradients come first.
    """
    launches = launches_of_losses(score, arch, dtype, batch, dim, precision)
    ways = {(it.name, str(aot.specialisation(it))): it for it in launches if it.name in OF_LOSSES}
    return list(ways.values())


def launches_of_losses(
    score: str, arch: int, dtype: torch.dtype, batch: int, dim: int, precision: str = "float32"
) -> list:
    """Every launch of every operator of losses."""
    facts = get_score(score)
    queries = torch.empty(batch, dim * facts.query_planes(has_factor=False))
    table = torch.empty(2041, dim * facts.planes, dtype=dtype)
    indptr, indices = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(999).long()
    lse, grad = torch.empty(batch, dtype=torch.float64), torch.empty(batch)
    operands, need = operands_of(queries, table, score, torch.empty(2041)), LossNeed(1, 1, 1)
    operands = replace(operands, precision=precision)
    losses, labels = triton.backend.losses, Bce(indptr, indices, 0.9, 0.1)
    with aot.recorded(arch) as launches:
        losses.value_and_gradients(operands, labels, 3.0, need)
        for loss in (labels, CrossEntropy(indptr[1:], 0.1)):
            losses.value(operands, loss)
            losses.gradients(operands, loss, grad, need, LossRows(grad, lse, lse))
    return launches


def first_of_each(launches: list) -> list:
    """One of each kernel: fast tests compile these."""
    return list({launch.name: launch for launch in reversed(launches)}.values())


DISTANCES = [
    ("rotate", torch.float32, 512, slow),
    ("rotate", torch.float16, 1, slow),
    ("rotate_interleaved", torch.float32, 100, slow),
    ("l1", torch.float32, 512, slow),
    ("l2", torch.bfloat16, 512, slow),
    ("rscf_rotate", torch.float32, 512, slow),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("score", "dtype", "batch"), [pytest.param(*case, marks=marks) for *case, marks in DISTANCES]
)
def test_a_pair_is_scored_once_and_its_loss_costs_little(score, dtype, batch, arch) -> None:
    """Bce of rotate: 6.6 d slots a pair and 62, cross entropy 35 and 30 with each sweep."""
    check_distances(losses_recorded(score, arch, dtype, batch), score, arch)


def test_bce_of_rotate_with_its_gradients() -> None:
    check_distances(first_of_each(losses_recorded("rotate", 90)), "rotate", 90)


SLOTS = {"bce": (20, [(False, True, True)]), "cross entropy": (27, [(True, 1, 0), (True, 0, 1)])}


@pytest.mark.parametrize("name", ["bce", pytest.param("cross entropy", marks=slow)])
def test_a_loss_of_rotate_with_its_gradients_in_slots_a_pair(name) -> None:
    """512 queries and 200 features: pairs are scored once or twice, and pulled."""
    most, losses = SLOTS[name]
    launches = launches_of_losses("rotate", 90, torch.float32, 512, 200)
    total = 0.0
    for loss in losses:
        launch = next(it for it in launches if it.variant and results_of(it) == loss)
        total += aot.slots_of_pair(launch, aot.compile_for(launch, 90), 200)
    pull = only(launches, "pull")
    total += 200 * aot.slots_of_pull(pull, aot.compile_for(pull, 90), 512)
    assert total <= most * 200, total


def results_of(launch) -> tuple[bool, bool, bool]:
    """Return whether a kernel of losses takes a softmax, sums rows, and writes slopes."""
    labels, result = launch.args["labels"], launch.args["result"]
    return labels.indptr is None, result.sums is not None, result.slopes is not None


def check_distances(launches: list, score: str, arch: int) -> None:
    seen = set()
    for launch in launches:
        seen.add(launch.name)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch
        # One program of 8 warps fits a multiprocessor with 168 registers a thread, and with 255.
        has_room = get_score(score).root and launch.options["num_warps"] == 8
        assert code.registers <= (255 if has_room else 168), launch
        if launch.name != "tile_losses":
            continue
        assert get_score(score).root or code.registers <= 128, launch  # 16 warps a multiprocessor
        is_large = launch.tile.rows > 32
        if get_score(score).planes == 1:
            continue  # few slots, in loops that ptxas unrolls as it likes
        pairs = math.prod(launch.tile[:2]) // (32 * launch.options["num_warps"])
        inner = code.loop_of_roots(pairs)
        slots = inner.total() / inner["MUFU.SQRT"]
        small = 7.6 if arch == 120 else 7.5  # sm_120's additional slots are in the loop's end
        assert slots <= (9 if score.startswith("rscf") else 6.7 if is_large else small)
        around = (code.operations.total() - inner.total()) / pairs
        assert around <= (75 if is_large else 100), around
    assert seen == {"make_keys", "tile_losses", "finish"}


PRODUCTS = [
    (torch.float32, 512, 200, slow),
    (torch.bfloat16, 512, 200, slow),
    (torch.float16, 512, 200, slow),
    (torch.float32, 16, 200, slow),
    (torch.float32, 512, 201, slow),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "batch", "dim"), [pytest.param(*case, marks=marks) for *case, marks in PRODUCTS]
)
def test_products_are_made_on_tensor_cores_where_these_are_faster(dtype, batch, dim, arch) -> None:
    check_products(losses_recorded("dot", arch, dtype, batch, dim), arch)


def test_a_product_with_its_gradients() -> None:
    check_products(first_of_each(losses_recorded("dot", 90, dim=200)), 90)


def check_products(launches: list, arch: int) -> None:
    seen = set()
    for launch in launches:
        seen.add(launch.name)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch
        if launch.name in ("tile_losses", "multiply_slopes"):
            assert code.shared <= 96 << 10
            if arch in GEFORCE:
                check_float32(launch, code)
                continue
            is_small = launch.tile.rows < 64
            name = "HMMA" if is_small else TENSOR_CORES[arch]
            assert code.operations[name] > 0, (launch.name, code.operations)
            assert product_of(launch).precision == "tf32x3"
        if launch.name == "tile_losses" and arch == 90 and launch.tile.rows >= 64:
            check_tensor_cores(launch, code)
    assert seen == {"make_keys", "tile_losses", "multiply_slopes", "finish"}


def check_float32(launch, code) -> None:
    """Assert that a loop multiplies each pair once, in float32, and does little beside that."""
    tile, product = launch.tile, product_of(launch)
    loop = max(code.loops, key=lambda it: it["FFMA"])
    products = tile.rows * tile.lanes * product.depth // (32 * launch.options["num_warps"])
    assert product.precision == "ieee"
    assert not any(name.endswith("MMA") for name in code.operations)
    assert products <= loop["FFMA"] <= 1.1 * products
    assert loop.total() <= 1.7 * products  # three products of tf32 take 3.0 in tensor cores alone


def product_of(launch):
    return launch.args["PRODUCT"] if launch.variant is None else launch.variant.product


ROUNDED = [
    (torch.float32, 512, 200),
    (torch.float16, 16, 200),
    (torch.float32, 64, 201),
    (torch.bfloat16, 512, 200),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "batch", "dim"),
    [pytest.param(*case, marks=() if case == ROUNDED[0] else slow) for case in ROUNDED],
)
def test_products_of_bf16_numbers_are_one(dtype, batch, dim, arch) -> None:
    """Any width is read in vectors, forward and backward; on sm_90 a multiprocessor holds two."""
    for launch in losses_recorded("dot", arch, dtype, batch, dim, "bf16"):
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch
        assert code.shared <= 99 << 10, launch
        if launch.name not in ("tile_losses", "multiply_slopes"):
            continue
        is_scored = launch.name == "tile_losses"
        assert product_of(launch).precision == "bf16"
        assert arch != 90 or not is_scored or code.registers <= 128
        loop = code.busiest
        if is_scored or arch in (90, 100):
            check_tensor_cores(launch, code)
            assert loop["LDG"] == 0, launch  # all by copies that wait for nothing
        else:
            assert loop["BAR"] <= 3


def check_tensor_cores(launch, code) -> None:
    """Assert that no product of a step is made twice, and that two barriers a step suffice."""
    tile, product, loop = launch.tile, product_of(launch), code.busiest
    parts = {"tf32x3": 3, "bf16": 1}[product.precision]
    needed = parts * tile.rows * tile.lanes * product.depth
    if not loop["UTCHMMA"]:  # UTCHMMA does not tell how much it multiplies
        assert loop.products.total() * launch.options["num_warps"] == needed
    assert loop["BAR"] <= 2


@pytest.mark.parametrize("batch", [64, pytest.param(33, marks=slow), pytest.param(128, marks=slow)])
def test_products_of_few_queries_are_made_once(batch) -> None:
    launches = losses_recorded("dot", 90, batch=batch, dim=200)
    launch = next(it for it in launches if it.name == "tile_losses")
    check_tensor_cores(launch, aot.compile_for(launch, 90))


@pytest.mark.parametrize("score", ["rotate", "dot"])
def test_small_pools_are_cut_into_more_tiles(score, monkeypatch) -> None:
    from kgfast.kernels.triton.host import launch as launcher

    programs = {}
    for count in (1, 132):
        monkeypatch.setattr(launcher, "num_multiprocessors", lambda device, count=count: count)
        launches = losses_recorded(score, 90, batch=256, dim=200)
        launch = next(it for it in launches if it.name == "tile_losses")
        programs[count] = math.prod(launch.grid)
        assert aot.compile_for(launch, 90).stack == 0
    assert programs[132] >= 2 * programs[1]


def test_tf32_only_where_the_caller_allows_it(monkeypatch) -> None:
    """Either by torch's precision, which its other switch is the same as."""
    from kgfast.kernels.triton.host.matmul import precision_of

    def chosen(arch=90, precision="float32"):
        operands = operands_of(torch.empty(1, 4), torch.empty(1, 4), "dot")
        return precision_of(replace(operands, precision=precision), arch)

    before = torch.get_float32_matmul_precision()
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # the other may raise then
        monkeypatch.delattr(torch, "get_float32_matmul_precision")
    try:
        for name, wanted in (("highest", "tf32x3"), ("high", "tf32"), ("medium", "tf32")):
            torch.set_float32_matmul_precision(name)
            assert chosen() == wanted
            for arch in GEFORCE:  # three products take longer than one in float32
                assert chosen(arch) == ("ieee" if name == "highest" else "tf32")
            assert chosen(precision="bf16") == "bf16"
            assert chosen(arch=0) == chosen(arch=0, precision="bf16") == "ieee"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = True
        assert chosen() == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("recorded", [pairs_recorded, losses_recorded])
def test_sizes_do_not_compile_a_kernel_anew(recorded) -> None:
    def keys(batch: int) -> set:
        ways = recorded("rotate", arch=90, batch=batch)
        return {(launch.name, str(aot.specialisation(launch))) for launch in ways}

    assert keys(1000) == keys(1024) == keys(999)


@slow
def test_amd_code_of_losses() -> None:
    for launch in losses_recorded("rotate", 0) + losses_recorded("dot", 0):
        assert aot.compile_for(launch, "gfx942").stack == 0, launch.name
