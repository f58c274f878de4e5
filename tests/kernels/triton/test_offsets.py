"""Offsets in 64 bits, read from the TTIR of every kernel: strides may be anything that torch has.

A product of 32 bits wraps from 2**31 on: the last feature of a table that lies column by column is
``D N`` numbers away.
"""

import re
from collections.abc import Iterator

import pytest
import torch

from kgfast.kernels.triton.host import status
from support.triton_code import compiled

pytest.importorskip("triton")
import triton
import triton.language as tl

from kgfast.kernels.triton.device.arguments import RowView
from support import aot, real_jit

pytestmark = compiled

# Products of two numbers of a launch that are small: programs of a grid's axis; rows and features
# of packed rows, whose memory is bounded.
COUNTS = {
    *(("multiply_slopes", "first"), ("pull", "first"), ("pull", "o_mine"), ("sweep", "feature")),
    *(("sweep_split", "o_query"), ("sweep_split", "o_candidate")),
    *((name, "end") for name in ("sweep", "sweep_split", "sweep_in_place")),  # of a query's band
}


class Strided(real_jit.Problem):
    """Problem of which no stride is 1."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.queries, self.table = (it.t().contiguous().t() for it in (self.queries, self.table))
        factor = self.options["factor"]
        self.options["factor"] = None if factor is None else factor.t().contiguous().t()
        self.options["bias"] = torch.randn(2 * real_jit.ROWS)[::2]


def numbers_of(launch: aot.Launch) -> Iterator[str]:
    """Yield the name of each argument of the compiled kernel, as ``views.table.step``."""
    constants = {path for path, _ in aot.specialisation(launch).constants}

    def names(value: object, path: tuple[int, ...], name: str) -> Iterator[str]:
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", range(len(value)))
            for i, (field, member) in enumerate(zip(fields, value, strict=True)):
                yield from names(member, (*path, i), f"{name}.{field}")
        elif path not in constants:
            yield name

    for i, parameter in enumerate(launch.kernel.params):
        if (i,) not in constants:
            yield from names(launch.args[parameter.name], (i,), parameter.name)


def products_of_strides(launch: aot.Launch) -> Iterator[tuple[str, str]]:
    """Yield products in 32 bits of a stride, or of two numbers of the launch, and the factors.

    A number that begins with ``num`` or ``count`` is none of memory's. A stride that is divided and
    multiplied by one constant, to show that it is even, cannot grow.
    """
    text = aot.ttir_of(launch)
    signature = re.search(r"tt\.func public @\w+\((.*?)\) attributes", text).group(1)
    arguments = re.findall(r"(%\w+): ", signature)
    # Strides that a value is made of; None: the value is a constant.
    strides: dict[str, set[str] | None] = {
        argument: set() if re.match(r"num|count", name.rpartition(".")[2]) else {name}
        for argument, name in zip(arguments, numbers_of(launch), strict=True)
    }
    divisors: dict[str, str] = {}
    for line in text.splitlines():
        line = line.partition(" loc(")[0].strip()
        match = re.match(r"(%\w+)(?::\d+)? = ([\w.]+) ?(.*)", line)
        if match is None:
            continue
        result, operation, rest = match.groups()
        read = re.findall(r"%\w+", rest)
        of_read = [strides.get(it, set()) for it in read]
        known = [it for it in of_read if it is not None]
        is_constant = operation == "arith.constant" or (bool(of_read) and not known)
        strides[result] = None if is_constant else set().union(*known)
        if operation.startswith(("tt.load", "tt.atomic", "arith.cmp")):
            strides[result] = set()
        if operation.startswith("arith.div"):
            divisors[result] = read[1]
        is_narrow = line.endswith(("i32", "xi32>"))
        if operation in ("arith.muli", "arith.shli") and is_narrow:
            is_aligned = divisors.get(read[0]) == read[1]
            if (strides[result] or None not in of_read) and not is_aligned:
                yield re.sub(r"_\d+$", "", result[1:]), str(of_read)


def launches_of(score: str, monkeypatch) -> Iterator[aot.Launch]:
    """Yield each different launch of every call of a score on float32, by its arguments' types."""
    monkeypatch.setattr(real_jit, "Problem", Strided)
    monkeypatch.setattr(status, "raise_if_bad", lambda rows: None)
    seen = set()
    for name, call in real_jit.calls_of(score):
        if "float16" in name or "float64" in name:
            continue
        with aot.recorded(90) as launches:
            call()
        for launch in launches:
            key = launch.name, aot.specialisation(launch), tuple(launch.options.items())
            if key not in seen:
                seen.add(key)
                yield launch


KERNELS = {"pack", "sweep_in_place", "decide", "count_known", "score_tiles", "gather_scores"}
OF_PRODUCTS = {"sweep_split", "pack_parts", "tile_losses", "multiply_slopes", "finish", "compose"}
OF_DISTANCES = {"sweep", "pull", "add_parts"}


SCORES = ["dot", "rotate", pytest.param("rscf_rotate", marks=pytest.mark.slow)]


@pytest.mark.parametrize("score", SCORES)
def test_every_stride_is_multiplied_in_64_bits(score, monkeypatch) -> None:
    names, wrong = set(), set()
    for launch in launches_of(score, monkeypatch):
        names.add(launch.name)
        for product, factors in products_of_strides(launch):
            if (launch.name, product) not in COUNTS:
                wrong.add((launch.name, product, factors))
    assert wrong == set()
    assert names >= KERNELS | (OF_PRODUCTS if score == "dot" else OF_DISTANCES)


@triton.jit
def read_narrowly(rows, num_rows, out, WIDE: tl.constexpr):
    """Read some numbers, by offsets in 32 bits unless ``WIDE``."""
    k = tl.arange(0, 32)
    if WIDE:
        k = k.to(tl.int64)
    tl.store(out + k, tl.load(rows.ptr + k * rows.step, mask=k < num_rows))


def test_a_product_in_32_bits_is_seen() -> None:
    memory = torch.zeros(96)
    arguments = {"rows": RowView(memory, 1, 1, 3), "num_rows": 32, "out": memory}
    for is_wide, products in ((False, ["rows.step"]), (True, [])):
        launch = aot.Launch(read_narrowly, (1,), arguments | {"WIDE": is_wide}, {"num_warps": 1})
        assert [re.findall(r"'(.*?)'", it)[0] for _, it in products_of_strides(launch)] == products
