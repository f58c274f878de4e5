"""Sweeps of the Triton backend: their value of every pair, beside the bound of its error."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from support.engines import CAN_RUN, DEVICE


def swept_distances(score: str, queries: Tensor, candidates: Tensor, factor: Tensor | None = None):
    """Sweep all pairs; return distances ``[B, N]`` and a function of their bound."""
    from kgfast.kernels.triton.device.arguments import Norm
    from kgfast.kernels.triton.host.launch import architecture
    from kgfast.kernels.triton.host.scan import Scan
    from kgfast.kernels.triton.host.views import form_of

    facts, has_factor = get_score(score), factor is not None
    dim = facts.num_features(candidates.shape[1])
    arch = architecture(queries.device)
    operands = Operands(queries, Prepared(candidates, facts, None, factor))
    scan = Scan(operands, dim, arch, few=0)
    scan.take((0, len(queries)))
    scan.limit(torch.zeros(len(queries), dtype=torch.float64, device=DEVICE))
    scan._panels = scan._packed((0, len(candidates)))
    packed, cut = scan.launch_arguments()[1]["packed"], scan.tile
    never = packed.thresholds.clone()
    never[:, :3] = torch.inf
    tiles = -(-len(queries) // cut.rows)
    panels = -(-len(candidates) // cut.lanes)
    out = torch.empty(tiles * cut.rows, panels * cut.lanes, device=DEVICE)
    store_distances[(tiles, panels)](
        packed._replace(thresholds=never, rel=0.0),
        out,
        dim,
        out.stride(0),
        FORM=form_of(operands, Norm.FACTOR if has_factor else Norm.NONE),
        TILE=cut,
        num_warps=cut.num_warps,
    )

    def allowed(distance: Tensor) -> Tensor:
        """Return the error for a target with score 0, of thresholds and norms as swept."""
        base, slope = packed.thresholds.double().transpose(0, 1).flatten(1)[1:3, : len(queries)]
        norms = packed.lanes.view(panels, 2, -1)[:, 1].flatten()[: len(candidates)].double()
        of_norms = slope[:, None] * norms if scan.bound.norm else 0.0
        return scan.bound.rel * distance.abs() + base[:, None] + of_norms

    return out[: len(queries), : len(candidates)], allowed


if CAN_RUN:
    from kgfast.kernels.triton.device.arguments import threshold_rows
    from kgfast.kernels.triton.device.sweep import flat, sweep_tile
    from kgfast.kernels.triton.device.terms import distance_of

    @triton.jit
    def store_distances(
        packed, p_out, num_features, stride, FORM: tl.constexpr, TILE: tl.constexpr
    ):
        p_threshold = packed.thresholds + tl.program_id(0) * (threshold_rows(FORM) * TILE.rows)
        decider = p_threshold, packed.rel
        p_panel = packed.lanes + tl.program_id(1) * (2 * TILE.lanes)
        total, _ = sweep_tile(packed, decider, p_panel, num_features, FORM, TILE)
        o_query = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
        o_lane = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
        p_pair = p_out + o_query[:, None] * stride + o_lane[None, :]
        tl.store(p_pair, distance_of(flat(total, TILE), FORM))
