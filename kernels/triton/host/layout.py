"""Host's side of packing: rows laid out in panels, and facts of each lane."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...operands import Operands
from ...reference.trig import LARGEST_PHASE
from ..device.arguments import Lanes, Norm, RowView
from ..device.moved_queries import describe_moves, pack_moved
from ..device.pack import NO_FACTS, PACK_FEATURES, PACK_ROWS, LaneFacts, Panel, pack
from . import launch as launcher
from .views import form_of, packed_planes, plane_of, queries_of, rows_of


class Selection(NamedTuple):
    """The ``size`` rows of lanes: ``ids``, or else the rows from ``first`` on."""

    size: int
    ids: Tensor | None = None
    first: int = 0

    def of(self, rows: RowView, status: Tensor | None = None) -> Lanes:
        """Return the lanes of ``rows``; with a status, kernels check their values."""
        return Lanes(rows, self.ids, self.first, status)


def pack_queries(
    operands: Operands,
    selection: Selection,
    dim: int,
    width: int,
    *,
    status: Tensor | None = None,
    is_stored: bool = False,
) -> Tensor:
    """Pack queries for a sweep, ``[tiles][dim][planes][width]``, flat.

    Queries of products are negated; queries that a factor moves are moved as by 1; unless they are
    packed as stored. ``status [1]``, if given, is lowered to the least row with a number that is
    not finite.
    """
    planes = operands.query_planes
    out = room(operands.queries, selection.size, width, dim * planes)
    is_negated = not (is_stored or operands.score.monotone)
    panel = Panel(width, planes, planes, is_negated=is_negated)
    rows = selection.of(queries_of(operands), status), selection, dim, panel
    if operands.score.is_rscf and not is_stored:
        pack_lanes(pack_moved, *rows, p_out=out, FORM=form_of(operands.without_bias()))
    else:
        pack_lanes(pack, *rows, p_out=out, facts=NO_FACTS)
    return out


def pack_candidates(
    operands: Operands,
    selection: Selection,
    dim: int,
    width: int,
    *,
    out: Tensor | None = None,
    status: Tensor | None = None,
    described: tuple[LaneFacts, Norm] = (NO_FACTS, Norm.NONE),
) -> Tensor:
    """Pack candidates ``[panels][dim][planes][width]``, flat, with the factor as the last plane.

    ``status [2]`` is that of the table's rows and of the factor's rows. If ``described`` has facts,
    biases and bounds of a norm go there, for a sweep with queries moved by 1: the factor is then
    reduced by 1, and the norm is that of the reduced factor.
    """
    facts, norm = described
    planes, total = operands.score.planes, packed_planes(operands)[1]
    if out is None:
        out = room(operands.table, selection.size, width, dim * total)
    panel = Panel(width, planes, total, norm.value)
    of_table, of_factor = (None, None) if status is None else (status[:1], status[1:])
    table = selection.of(rows_of(operands.table, operands.score), of_table)
    if operands.factor is None:
        pack_lanes(pack, table, selection, dim, panel, p_out=out, facts=facts)
        return out
    of_rows = panel._replace(norm=Norm.NONE.value)
    pack_lanes(pack, table, selection, dim, of_rows, p_out=out, facts=NO_FACTS)
    factor = selection.of(plane_of(operands.factor), of_factor)
    panel = panel._replace(planes=1, first=planes, is_less_one=facts.ptr is not None)
    pack_lanes(pack, factor, selection, dim, panel, p_out=out, facts=facts)
    return out


def query_norms(operands: Operands, dim: int, norm: Norm) -> Tensor | None:
    """Return numbers of all queries that a bound needs, see thresholds.norms_of.

    These are upper bounds on norms or, of rscf scores, four sizes (device/moved_queries.py).
    """
    count, panels = len(operands.queries), -(-len(operands.queries) // PACK_ROWS)
    if operands.score.is_rscf:
        sizes = operands.queries.new_empty(panels, 5, PACK_ROWS, dtype=torch.float64)
        arguments = {
            "queries": queries_of(operands),
            "count": count,
            "num_features": dim,
            "p_sizes": sizes,
            "FORM": form_of(operands.without_bias()),
        }
        launcher.launch(describe_moves, (panels,), arguments, num_warps=4)
        reach = operands.candidates.factor_reach if len(operands.table) else None
        if reach is not None and operands.score.planes == 2:
            # A phase a b may have no canonical sine: then no bound of the query is finite.
            phases = sizes[:, 4] * (reach + 1.0)
            sizes[:, 1].masked_fill_(~(phases <= LARGEST_PHASE), torch.inf)
        return sizes
    if not norm:
        return None
    out = room(operands.table, count, PACK_ROWS, 2)
    view, planes = rows_of(operands.queries, operands.score), operands.score.planes
    panel, every = Panel(PACK_ROWS, planes, total=0, norm=norm.value), Selection(count)
    facts = LaneFacts(out, None)
    pack_lanes(pack, every.of(view), every, dim, panel, p_out=out, facts=facts)
    return out


def room(like: Tensor, count: int, width: int, floats: int) -> Tensor:
    """Make memory for a number of floats of each lane, in whole panels of a width, flat."""
    return like.new_empty(-(-count // width) * width * floats, dtype=torch.float32)


def pack_lanes(
    kernel: Any, lanes: Lanes, selection: Selection, features: int, panel: Panel, **others: Any
) -> None:
    """Launch a kernel that packs lanes; a program takes all features if these have a norm."""
    panels = -(-selection.size // panel.lanes)
    launcher.launch(
        kernel,
        (panels * (panel.lanes // PACK_ROWS), 1 if panel.norm else -(-features // PACK_FEATURES)),
        {
            "lanes": lanes,
            "count": selection.size,
            "num_features": features,
            "PANEL": panel,
            **others,
        },
        num_warps=4,
    )
