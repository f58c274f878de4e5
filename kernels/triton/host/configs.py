"""Tiles and scratch, in closed form from the shape: nothing is tuned at run time.

Cost model (compiled for sm_90; registers a thread, issue slots an element of the rotate loop):

    32 queries x 128 candidates, 4 warps    136    6.9    12 warps a multiprocessor
    32 x 32, 1 warp                         128    7.0    for batches that fill few tiles
    16 x 32, 1 warp                          66    7.2    for batches of up to 16
    16 x 128, 4 warps                        79    7.3    for several crops at once

A lane is a candidate and holds every query of its tile: ``candidates = lanes of a warp * warps``.
Other shapes reload their operands and need 14 slots; 64 x 128 takes 6.7 slots but spills.
"""

from dataclasses import dataclass

from ...scores import Score

PACKED_BYTES = 40 << 20  # packed queries and candidates together
QUERY_BYTES = 16 << 20  # of these, packed queries at most
LANE_BYTES = 8  # a packed candidate's bias and norm
BAND_PAIRS = 1 << 19  # 8 bytes each; at least a tile
QUERIES_PER_PASS = 8192  # leaves the band room for 64 undecided candidates a query
MAX_GRID = 65535  # programs along the second or third axis of a launch
RSCF_REGISTERS = 160  # a cap that no rscf kernel needs; without one ptxas spills scalars


@dataclass(frozen=True)
class Tile:
    """The tile of a sweep."""

    queries: int
    candidates: int
    num_warps: int
    max_registers: int | None = None  # where ptxas spills scalars without it


@dataclass(frozen=True)
class Plan:
    """How one crop is cut: a chunk of panels is packed, then swept by a pass of queries."""

    tile: Tile
    queries_per_pass: int
    candidates_per_chunk: int

    def scratch(self, query_floats: int, row_floats: int) -> tuple[int, int, int]:
        """Floats of the packed queries, of the packed panels, and of their biases and norms."""
        chunk = self.candidates_per_chunk
        return self.queries_per_pass * query_floats, chunk * row_floats, chunk * (LANE_BYTES // 4)


def tile_for(score: Score, num_queries: int, arch: int, num_crops: int = 1) -> Tile:
    """The tile for a batch; ``arch`` is 80, 90, 100 for NVIDIA, 0 for AMD.

    Crops that are swept at once keep their totals while one is classified, rscf scores load
    and compute more: fewer queries.
    """
    lanes = 32 if arch else 64
    if num_crops > 1 or score.is_rscf:
        num_warps = 1 if num_queries < 256 else 4
        cap = RSCF_REGISTERS if score.is_rscf else _crop_registers(score, arch)
        return Tile(16, lanes * num_warps, num_warps, cap if arch else None)
    if num_queries <= 16:
        return Tile(16, lanes, 1)
    if num_queries < 256:
        return Tile(32, lanes, 1, 144 if arch else None)
    is_capped = arch and (arch < 90 or score.planes == 1)
    return Tile(32, 4 * lanes, 4, 136 if is_capped else None)


def _crop_registers(score: Score, arch: int) -> int | None:
    """A cap for crops that are swept at once, none of which needs more, with the same end."""
    if not score.monotone:
        return 128
    return 96 if score.planes == 1 or arch < 90 else None


def plan(
    score: Score,
    num_queries: int,
    num_candidates: int,
    num_features: int,
    arch: int,
    num_crops: int = 1,
    has_factor: bool = False,
) -> Plan | None:
    """Cut a crop into passes and chunks that fit the scratch; None if not even one tile does.

    With ``num_crops`` the widest of so many, which are swept at once.
    """
    tile = tile_for(score, num_queries, arch, num_crops)
    query_bytes = 4 * num_features * score.query_planes(has_factor)
    row_bytes = 4 * num_features * (score.planes + has_factor)
    most_tiles = min(QUERY_BYTES // query_bytes, QUERIES_PER_PASS) // tile.queries
    if most_tiles == 0:
        return None
    tiles = _even_share(-(-num_queries // tile.queries), most_tiles)
    left = PACKED_BYTES - tiles * tile.queries * query_bytes
    most_panels = min(left // ((row_bytes + num_crops * LANE_BYTES) * tile.candidates), MAX_GRID)
    if most_panels == 0:
        return None
    panels = _even_share(-(-num_candidates // tile.candidates), most_panels)
    return Plan(tile, tiles * tile.queries, panels * tile.candidates)


def _even_share(count: int, limit: int) -> int:
    """The size of equal parts of ``count``, as few of them as ``limit`` allows."""
    parts = max(1, -(-count // limit))
    return max(1, -(-count // parts))
