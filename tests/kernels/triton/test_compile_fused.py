"""The code of fused losses, compiled ahead of time: as in test_compile.py, without a GPU."""

import math
import os

import pytest
import torch

from kgfast.kernels.labels import CrossEntropyBackward, Labels, LossNeed
from kgfast.kernels.scores import get_score
from support.flat import operands_of, triton
from support.triton_code import ARCHS, only

pytest.importorskip("triton")
import aot

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)

OWN = {"make_keys", "distance_losses", "product_losses", "multiply_slopes", "finish"}
TENSOR_CORES = dict.fromkeys((80, 86, 89, 120), "HMMA") | {90: "HGMMA", 100: "UTCHMMA"}
slow = pytest.mark.slow


def recorded(
    score: str, arch: int, dtype: torch.dtype = torch.float32, batch: int = 512, dim: int = 100
) -> list:
    """Each of the losses' own kernels, once for each way it is compiled.

    Those of a value with its gradients come first.
    """
    launches = all_recorded(score, arch, dtype, batch, dim)
    ways = {(it.name, str(aot.specialisation(it))): it for it in launches if it.name in OWN}
    return list(ways.values())


def all_recorded(score: str, arch: int, dtype: torch.dtype, batch: int, dim: int) -> list:
    """Every launch of every operator of losses."""
    facts = get_score(score)
    queries = torch.empty(batch, dim * facts.query_planes(has_factor=False))
    table = torch.empty(2041, dim * facts.planes, dtype=dtype)
    indptr, indices = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(999).long()
    lse, grad = torch.empty(batch, dtype=torch.float64), torch.empty(batch)
    operands, need = operands_of(queries, table, score, torch.empty(2041)), LossNeed(1, 1, 1)
    losses, labels = triton.backend.losses, Labels(indptr, indices, 0.9, 0.1)
    with aot.recorded(arch) as launches:
        losses.bce_total(operands, labels, 3.0, need)
        losses.bce(operands, labels)
        losses.bce_gradients(operands, labels, grad, need)
        losses.cross_entropy(operands, indptr[1:], 0.1)
        made_of = CrossEntropyBackward(grad, lse, indptr[1:], 0.1)
        losses.cross_entropy_gradients(operands, made_of, need)
    return launches


def first_of_each(launches: list) -> list:
    """One of each kernel: fast tests compile these."""
    return list({launch.name: launch for launch in reversed(launches)}.values())


CASES = [
    ("rotate", torch.float32, 512, slow),
    ("rotate", torch.float16, 1, slow),
    ("rotate_interleaved", torch.float32, 100, slow),
    ("l1", torch.float32, 512, slow),
    ("l2", torch.bfloat16, 512, slow),
    ("rscf_rotate", torch.float32, 512, slow),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("score", "dtype", "batch"),
    [pytest.param(*case, marks=marks) for *case, marks in CASES],
)
def test_a_pair_is_scored_once_and_its_loss_costs_little(score, dtype, batch, arch) -> None:
    """Bce of rotate: 6.6 d slots a pair and 62, cross entropy 35 and 30 with each sweep."""
    check_distances(recorded(score, arch, dtype, batch), score, arch)


def test_bce_of_rotate_with_its_gradients() -> None:
    check_distances(first_of_each(recorded("rotate", 90)), "rotate", 90)


SLOTS = {"bce": (20, [(False, True, True)]), "cross entropy": (27, [(True, 1, 0), (True, 0, 1)])}


@pytest.mark.parametrize("name", ["bce", pytest.param("cross entropy", marks=slow)])
def test_a_loss_of_rotate_with_its_gradients_in_slots_a_pair(name) -> None:
    """512 queries and 200 features: pairs are scored once or twice, and pulled."""
    most, losses = SLOTS[name]
    launches = all_recorded("rotate", 90, torch.float32, 512, 200)
    total = 0.0
    for loss in losses:
        launch = next(it for it in launches if it.variant and it.variant.loss[:3] == loss)
        total += aot.slots_of_pair(launch, aot.compile_for(launch, 90), 200)
    pull = only(launches, "pull")
    total += 200 * aot.slots_of_pull(pull, aot.compile_for(pull, 90), 512)
    assert total <= most * 200, total


def check_distances(launches: list, score: str, arch: int) -> None:
    seen = set()
    for launch in launches:
        seen.add(launch.name)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch
        assert code.registers <= 168, launch
        if launch.name != "distance_losses":
            continue
        assert get_score(score).root or code.registers <= 128, launch  # 16 warps a multiprocessor
        is_large = launch.tile.rows > 32
        if get_score(score).planes == 1:
            continue  # few slots, in loops that ptxas unrolls as it likes
        pairs = math.prod(launch.tile[:2]) // (32 * launch.options["num_warps"])
        inner = code.loop_of_roots(pairs)
        slots = inner.total() / inner["MUFU.SQRT"]
        assert slots <= (9 if score.startswith("rscf") else 6.7 if is_large else 7.5)
        around = (code.operations.total() - inner.total()) / pairs
        assert around <= (75 if is_large else 100), around
    assert seen == {"make_keys", "distance_losses", "finish"}


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
def test_products_are_made_on_tensor_cores(dtype, batch, dim, arch) -> None:
    check_products(recorded("dot", arch, dtype, batch, dim), arch, dtype)


def test_a_product_with_its_gradients() -> None:
    check_products(first_of_each(recorded("dot", 90, dim=200)), 90, torch.float32)


def check_products(launches: list, arch: int, dtype: torch.dtype) -> None:
    seen = set()
    for launch in launches:
        seen.add(launch.name)
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch
        if launch.name in ("product_losses", "multiply_slopes"):
            is_small = launch.tile.rows < 64
            name = "HMMA" if is_small else TENSOR_CORES[arch]
            assert code.operations[name] > 0, (launch.name, code.operations)
            expected = {torch.bfloat16: "bf16", torch.float16: "tf32x2"}.get(dtype, "tf32x3")
            precision = product_of(launch).precision
            assert precision in (expected, "tf32x3")
            assert code.shared <= 96 << 10
        if launch.name == "product_losses" and arch == 90 and launch.tile.rows >= 64:
            check_tensor_cores(launch, code)
    assert seen == {"make_keys", "product_losses", "multiply_slopes", "finish"}


def product_of(launch):
    return launch.args["PRODUCT"] if launch.variant is None else launch.variant.product


def check_tensor_cores(launch, code) -> None:
    """No product of a step is made twice, and two barriers a step suffice."""
    tile, product, loop = launch.tile, product_of(launch), code.busiest
    parts = {"tf32x3": 3, "bf16": 3, "tf32x2": 2, "tf32": 1}[product.precision]
    needed = parts * tile.rows * tile.lanes * product.depth
    assert loop.products.total() * launch.options["num_warps"] == needed
    assert loop["BAR"] <= 2


@pytest.mark.parametrize("batch", [64, pytest.param(33, marks=slow), pytest.param(128, marks=slow)])
def test_products_of_few_queries_are_made_once(batch) -> None:
    launches = recorded("dot", 90, batch=batch, dim=200)
    launch = next(it for it in launches if it.name == "product_losses")
    check_tensor_cores(launch, aot.compile_for(launch, 90))


@pytest.mark.parametrize(
    ("score", "kernel"), [("rotate", "distance_losses"), ("dot", "product_losses")]
)
def test_small_pools_are_cut_into_more_tiles(score, kernel, monkeypatch) -> None:
    from kgfast.kernels.triton.host import launch as launcher

    programs = {}
    for count in (1, 132):
        monkeypatch.setattr(launcher, "num_multiprocessors", lambda device, count=count: count)
        launch = next(it for it in recorded(score, 90, batch=256, dim=200) if it.name == kernel)
        programs[count] = math.prod(launch.grid)
        assert aot.compile_for(launch, 90).stack == 0
    assert programs[132] >= 2 * programs[1]


def test_tf32_only_where_the_caller_allows_it() -> None:
    """Either by torch's precision, which its other switch is the same as."""
    from kgfast.kernels.triton.loss_tiles import precision_of

    before = torch.get_float32_matmul_precision()
    try:
        for name, wanted in (("highest", "tf32x3"), ("high", "tf32"), ("medium", "tf32")):
            torch.set_float32_matmul_precision(name)
            assert precision_of(torch.float32, 90) == wanted
            of_half = "tf32x2" if name == "highest" else wanted
            assert precision_of(torch.float16, 90) == of_half
            assert precision_of(torch.bfloat16, 90) == "bf16"
            assert precision_of(torch.float32, 0) == "ieee"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = True
        assert precision_of(torch.float32, 90) == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_float32_matmul_precision(before)


@slow
def test_amd_code() -> None:
    for score in ("rotate", "dot"):
        for launch in recorded(score, 0):
            try:
                code = aot.compile_for(launch, "gfx942")
            except RuntimeError as error:
                pytest.skip(f"Triton does not compile for gfx942 here: {error}")
            assert code.stack == 0, launch.name


def test_sizes_do_not_compile_a_kernel_anew() -> None:
    def keys(batch: int) -> set:
        ways = recorded("rotate", 90, batch=batch)
        return {(launch.name, str(aot.specialisation(launch))) for launch in ways}

    assert keys(1000) == keys(1024) == keys(999)
