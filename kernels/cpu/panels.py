"""Panels that serve many calls: packed once for an index, read in place of the table.

Cost model: packing is one pass over the table (engine/pack.h). A sweep of panels reads what it
would have packed: a query against a table that is not in a cache then takes one read of the panels.
Memory: float32 panels are as large as a float32 table, up to the lanes of the last panel.
"""

import torch

from ..backend import Packing
from ..operands import Operands, Prepared
from ..panels import Panels
from ..scores import get_score
from . import extension
from .views import address, machine, panel_shape, pointers_of, reads


class _Packing:
    """See :class:`kgfast.kernels.panels.Packing`."""

    def pack(self, candidates: Prepared) -> Panels | str:
        table, score = candidates.table, candidates.score
        if candidates.factor is not None:
            return f"{score.name} moves queries by a factor of the candidate"
        if table.dtype.itemsize < torch.float32.itemsize:
            return f"the table is {table.dtype}, and panels would be larger"
        if not table.numel():
            return "the table is empty"
        count, width = candidates.num_rows, candidates.num_features
        lanes, planes = panel_shape(score)
        shape = (-(-count // lanes), width, planes, lanes)
        panels = torch.empty(shape, dtype=torch.float32, device="cpu")
        norms = torch.empty(len(panels), dtype=torch.float32, device="cpu")
        no_queries = table.new_empty((0, score.query_planes(has_factor=False) * width))
        operands = Operands(no_queries, Prepared(table, score))
        _, bad, _ = extension.pack_panels(
            machine(), pointers_of(operands, None), width, address(panels), address(norms)
        )
        if bad >= 0:
            return f"row {bad} of the table holds a NaN or an infinity"
        tensors = {"panels": panels, "norms": norms}
        return Panels("float32", score.name, lanes, count, width, tensors)

    def reads(self, panels: Panels) -> bool:
        return reads(panels, get_score(panels.score))


PACKING: Packing = _Packing()
