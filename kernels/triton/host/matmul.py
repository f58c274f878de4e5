"""Products of queries, tables and slopes on the host: tiles, precisions, launches."""

from typing import Any

import torch
from torch import Tensor

from ...operands import Operands
from ..device.arguments import TileShape, Vector
from ..device.products import Factors, GradTile, Product, Weighted, multiply_slopes
from . import launch as launcher
from .configs import GEFORCE, CropTile
from .pull import add_parts
from .views import plane_of

PARTIAL_BYTES = 8 << 20  # of the least scratch: gradients of queries, of splits of the candidates
PROGRAMS = 4  # programs that fill a multiprocessor
LOW_REGISTERS = 128  # for 16 warps per multiprocessor
PRODUCT_REGISTERS, GRAD_REGISTERS = 240, 168  # uncapped, ptxas spills scalars
UNEVEN_REGISTERS = 200  # for a sum over rows that are not read in fours, before Hopper
ALL_REGISTERS = 255  # for slopes that are not read in fours
DEPTH = 32  # features, or rows of gradients, that are multiplied at a time
IEEE_DEPTH = 16  # without tensor cores: as many slots, and fewer registers
BF16_MULTIPLE = 8  # features of a rounded row: 16 bytes are read at once
BF16_DEPTH = 64  # for two factors in bfloat16: as many bytes
GRAD_TILE = GradTile(64, 64)
FULL = ("highest", "ieee", "none")  # precisions of torch that allow no tf32


class Products:
    """Products of some queries and a table; both are read in place.

    ``tile`` is that of a launch that scores.
    """

    def __init__(self, queries: Tensor, table: Tensor, precision: str, arch: int) -> None:
        self.queries, self._arch = queries, arch
        is_rounded = queries.dtype == torch.bfloat16
        is_even = is_rounded or all(
            it.stride(0) % 4 == 0 and it.stride(1) == 1 and it.data_ptr() % 16 == 0
            for it in (queries, table)
        )
        dim = queries.shape[1]
        self._is_even = is_even and dim % 4 == 0
        multiple = BF16_MULTIPLE if is_rounded else 4 if self._is_even else 1
        depth = BF16_DEPTH if precision == "bf16" else DEPTH
        if precision == "ieee" and arch:
            depth = IEEE_DEPTH
        self.product = Product(depth, precision, multiple)
        filled = len(table), arch, launcher.num_multiprocessors(table.device)
        tile = product_tile(len(queries), *filled, is_even=multiple > 1)
        self.tile = TileShape(tile.rows, tile.lanes)
        # One product of bf16 is short beside the reduction of its scores: two programs fit.
        has_room = arch == 90 and precision == "bf16"
        most = LOW_REGISTERS if has_room else PRODUCT_REGISTERS
        self._scored = tile._replace(max_registers=most if arch else None)
        # On sm_120 either gradient would spill.
        self._registers = UNEVEN_REGISTERS if arch >= 120 else GRAD_REGISTERS
        self._is_uneven = arch < 90 and multiple == 1

    def launch(
        self, kernel: Any, rows: Tensor, bias: Vector | None, arguments: dict[str, Any]
    ) -> None:
        """Launch a kernel that scores some rows of the table."""
        count, dim = self.queries.shape
        sizes = {"num_queries": count, "num_candidates": len(rows), "num_features": dim}
        factors = Factors(plane_of(self.queries), plane_of(rows), bias)
        self._scored.launch(kernel, count, sizes, rows=factors, **arguments)

    def multiply(
        self, slopes: Tensor, others: Tensor, grad: Tensor, *, splits: int, adds: bool
    ) -> None:
        """Write slopes ``[B, N]``, of column stride 1, times rows into a gradient, or add to it.

        The gradient of queries comes in ``splits`` of the sum; 0 is for rows of the table.
        """
        registers, of_slopes = self._registers, 1 if slopes.stride(0) % 16 else 16
        if splits and self._is_uneven:
            registers = UNEVEN_REGISTERS
        if of_slopes == 1:
            registers = ALL_REGISTERS
        options = {"num_warps": 4, **launcher.capped(registers, self._arch)}
        if self.product.depth == IEEE_DEPTH:  # with four warps some spill, whatever the cap
            options = {"num_warps": 8}
        tiles = -(-len(grad) // GRAD_TILE.rows), -(-grad.shape[1] // GRAD_TILE.lanes)
        is_even = self._is_even and grad.stride(0) % 4 == 0 and grad.shape[1] % 4 == 0
        launcher.launch(
            multiply_slopes,
            (*tiles, max(1, splits)),
            {
                "weighted": Weighted(slopes, slopes.stride(0), plane_of(others), plane_of(grad)),
                "num_rows": len(grad),
                "num_others": len(others),
                "num_features": grad.shape[1],
                "TILE": GRAD_TILE._replace(
                    of_queries=splits > 0,
                    adds=adds,
                    multiple=4 if is_even else 1,
                    of_slopes=of_slopes,
                ),
                "PRODUCT": self.product,
            },
            **options,
        )

    def add_queries(self, slopes: Tensor, rows: Tensor, grad: Tensor, *, adds: bool) -> None:
        """Write slopes times rows into the gradient of queries ``[B, D]``, or add to it.

        The sum comes in splits of the candidates, so that programs fill the machine.
        """
        count, dim = grad.shape
        tiles = -(-count // GRAD_TILE.rows) * -(-dim // GRAD_TILE.lanes)
        room = launcher.scratch_of(PARTIAL_BYTES, grad.device) // (4 * count * dim)
        programs = PROGRAMS * launcher.num_multiprocessors(grad.device)
        splits = max(1, min(programs // tiles, room, len(rows) // (4 * self.product.depth)))
        if splits == 1:
            self.multiply(slopes, rows, grad, splits=1, adds=adds)
            return
        parts = grad.new_empty(splits, count, dim)
        self.multiply(slopes, rows, parts[0], splits=splits, adds=False)
        add_parts(parts, plane_of(grad), (count, splits, dim), (1, dim), adds=adds)


def product_tile(
    num_queries: int, num_candidates: int, arch: int, multiprocessors: int, *, is_even: bool
) -> CropTile:
    """Return the tile of products for numbers of queries and candidates.

    On sm_90 each warp group has its own 64 rows. Two groups that share 64 rows make two products of
    three twice, and pass sums on through shared memory: 18 barriers per step, not 2. ``is_even`` is
    True if rows are read in fours; if not, four warps would spill on small GPUs.
    """
    has_room = arch >= 90 and is_even
    if num_queries <= 16:
        return CropTile(16, 128 if has_room else 64, 4)
    if not has_room:
        return CropTile(64, 64, 8 if arch in GEFORCE and not is_even else 4)
    if arch == 90:
        is_filled = -(-num_queries // 128) * -(-num_candidates // 64) >= multiprocessors
        has_rows = num_queries > 64 and is_filled
        return CropTile(128, 64, 8) if has_rows else CropTile(64, 64, 4)
    return CropTile(64, 128, 8)


def precision_of(operands: Operands, arch: int) -> str:
    """Choose the precision of products; see device/products.py.

    GeForce cards multiply tf32 numbers on tensor cores as fast as float32 numbers without (NVIDIA's
    whitepapers of RTX 3090, 4090 and 5090; workstation cards up to twice as fast). So three
    products take longer there than one in float32.
    """
    if not arch:
        return "ieee"
    if operands.precision == "bf16":
        return "bf16"
    # Since torch 2.9; reading the older name raises once a program has set the newer one.
    asked = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if (torch.get_float32_matmul_precision() if asked is None else asked) not in FULL:
        return "tf32"
    return "ieee" if arch in GEFORCE else "tf32x3"
