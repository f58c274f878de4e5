"""Tiles and scratch, in closed form from the shape: nothing is tuned at run time.

Cost model (compiled for sm_90; registers per thread, issue slots per element of the rotate loop,
words that a thread loads for a pair and plane):

    64 queries x 128 candidates, 8 warps    127    6.5    0.38    8 x 4 pairs a thread
    32 x 64, 4 warps                        108    6.8    0.63    8 x 2: up to 255, or crops
    16 x 32, 1 warp                          68    7.2    1.06    16 x 1: up to 16

A word takes the loads' return path a clock for each warp, a square root two, an instruction a
quarter. Loads stay without a detour through shared memory where fewer lanes are loaded than the
program has threads: 32 lanes, repeated, for several warps that share out the queries.
"""

from typing import Any, Literal, NamedTuple

from ...operands import Operands
from ...scores import Score
from ..device.split_sweep import SPLIT_FEATURES
from . import launch as launcher

PACKED_BYTES = 40 << 20  # packed queries and candidates together
QUERY_BYTES = 16 << 20  # most bytes of packed queries among these
LANE_BYTES = 8  # a packed candidate's bias and norm
SPLIT_LANE_BYTES = 16  # a split candidate's bias and norms
GEFORCE = (86, 89, 120)
FEW_QUERIES = 16  # rows of the smallest tile
BAND_PAIRS = 1 << 19  # 8 bytes each; at least a tile
QUERIES_PER_PASS = 8192  # leaves the band room for 64 undecided candidates per query
MAX_GRID = 65535  # programs along the second or third axis of a launch
MIDDLE_REGISTERS = RSCF_REGISTERS = 160  # no such kernel needs more; uncapped, ptxas spills scalars
SPLIT_REGISTERS = 240  # a cap like that of MIDDLE_REGISTERS
IN_PLACE_REGISTERS = 255  # all registers there are; with a lower cap ptxas spills scalars


Rows = Literal["packed", "split", "in place"]  # forms of rows in the sweep: scan.py


class CropTile(NamedTuple):
    """Rows (queries) and lanes (candidates) of one program of a sweep.

    A warp has a band of packed rows, a thread ``rows / num_warps * repeats`` pairs of the band.
    """

    rows: int
    lanes: int
    num_warps: int
    max_registers: int | None = None  # cap if ptxas spills scalars without one
    repeats: int = 0  # neighbouring lanes of a thread, of packed rows
    stages: int = 0  # steps of a split sweep in flight

    def launch(self, kernel: Any, num_queries: int, sizes: dict[str, int], **args: Any) -> None:
        """Launch a program for each tile of some queries and ``num_candidates`` of the sizes."""
        grid = -(-num_queries // self.rows), -(-sizes["num_candidates"] // self.lanes)
        options = {"num_warps": self.num_warps, **launcher.capped(self.max_registers)}
        launcher.launch(kernel, grid, {**args, **sizes}, **options)


def tile_for(score: Score, num_queries: int, arch: int, num_crops: int = 1) -> CropTile:
    """Return the tile for a batch; ``arch`` is 80, 90, 100 for NVIDIA, 0 for AMD.

    Crops that are swept at once keep all totals while one crop is classified, so tiles have fewer
    queries.
    """
    lanes = 32 if arch else 64
    if num_queries <= FEW_QUERIES:
        return CropTile(FEW_QUERIES, lanes, 1, repeats=1)
    is_tight = not arch and score.is_rscf and score.planes == 2  # a larger one spills on gfx942
    if num_queries < 256 or num_crops > 1 or is_tight:
        return CropTile(32, 2 * lanes, 4, MIDDLE_REGISTERS if arch else None, 2)
    # pairs that a factor moves
    is_wide = arch >= 100 and score.is_rscf and (score.planes == 2 or score.root)
    return CropTile(64, 4 * lanes, 8, RSCF_REGISTERS if is_wide else None, 4)


def filled_tile(operands: Operands, arch: int) -> CropTile:
    """Return the tile of scores and losses: a smaller one if tiles would not fill the machine."""
    score, count, crops = operands.score, operands.num_queries, len(operands.crops)
    tile = tile_for(score, count, arch, crops)
    tiles = -(-count // tile.rows) * -(-len(operands.table) // tile.lanes)
    is_filled = tiles >= launcher.num_multiprocessors(operands.table.device)
    return tile if is_filled else tile_for(score, min(count, 255), arch, crops)


def splits(score: Score, num_queries: int, arch: int) -> bool:
    """Return True if tensor cores sweep: dot products of many queries, on data centres' GPUs.

    A split sweep makes three products in bfloat16, whose peak is 15 and 16 times that of float32 on
    H100 and A100, but 2 times on GeForce RTX 3090, 4090 and 5090 (NVIDIA's whitepapers; 4 times on
    workstation cards of the same architectures, where it could save a quarter at most).
    """
    return not score.monotone and arch >= 80 and arch not in GEFORCE and num_queries > FEW_QUERIES


def split_tile(num_queries: int, arch: int) -> CropTile:
    """Return the tile of a split sweep: 32 KiB of shared memory per stage, or 24 KiB.

    Only data centres' newer GPUs have the memory for four stages. Predicted clocks of a step of the
    smaller on an H100: 1,024, all of them bytes of the L2 cache. If rows of a product are queries,
    8 warps take 1,712 (17 barriers, products made twice, one program per multiprocessor); 4 warps
    spill 48 bytes.
    """
    stages = 4 if arch in (90, 100, 103) else 3
    return CropTile(64 if num_queries <= 64 else 128, 128, 8, SPLIT_REGISTERS, stages=stages)


def in_place_tile(score: Score, num_queries: int, arch: int) -> CropTile:
    """Return a tile of rows in place, with sums that stay in registers: 8 to 64 per thread.

    A kernel is compiled for one query, and another for several: sizes of batches compile none anew.
    Eight queries of rotate and sixteen of real rows take as long as an H200 reads the rows (7.75
    slots for 8 bytes, 1.8 for 4). Queries of rscf scores, which are limited by arithmetic, share a
    tile in groups of four, and those of complex rows in groups of eight: the next group finds the
    rows in the cache. Four queries have half the candidates for complex rows on Blackwell, where
    the compiler takes more registers.
    """
    planes = 2 if arch == 120 else score.planes  # sixteen queries of real rows would spill there
    queries = 4 if score.is_rscf else FEW_QUERIES // planes
    if num_queries == 1:
        queries = 1
    few = 2 if arch >= 100 and score.planes == 2 else 4
    registers = IN_PLACE_REGISTERS if arch else None
    return CropTile(queries, 16 if queries <= few else 8, 4, registers)


def plan(
    score: Score,
    sizes: tuple[int, int],
    num_features: int,
    arch: int,
    has_factor: bool,
    room: int,
    rows: Rows,
) -> tuple[CropTile, int, int]:
    """Return the tile of a crop, the queries of a pass, and the candidates of a chunk.

    A chunk is packed, then swept by a pass. Both fit ``room`` bytes, but have at least a tile.
    ``sizes`` are the numbers of queries and candidates.
    """
    num_queries = sizes[0]
    if rows == "in place":
        tile = in_place_tile(score, num_queries, arch)
        return tile, FEW_QUERIES, MAX_GRID * tile.lanes
    if rows == "split":
        query_bytes = 4 * (-(-num_features // SPLIT_FEATURES) * SPLIT_FEATURES)
        tile, row_bytes = split_tile(num_queries, arch), query_bytes + SPLIT_LANE_BYTES
    else:
        tile = tile_for(score, num_queries, arch)
        query_bytes = 4 * num_features * score.query_planes(has_factor)
        row_bytes = 4 * num_features * (score.planes + has_factor) + LANE_BYTES
    most_tiles = min(QUERY_BYTES // query_bytes, QUERIES_PER_PASS) // tile.rows
    tiles = _even_share(-(-num_queries // tile.rows), max(1, most_tiles))
    left = room - tiles * tile.rows * query_bytes
    most_panels = min(max(1, left // (row_bytes * tile.lanes)), MAX_GRID)
    panels = _even_share(-(-sizes[1] // tile.lanes), most_panels)
    return tile, tiles * tile.rows, panels * tile.lanes


def _even_share(count: int, limit: int) -> int:
    """Return the size of equal parts of ``count``, as few as ``limit`` allows."""
    parts = max(1, -(-count // limit))
    return max(1, -(-count // parts))
