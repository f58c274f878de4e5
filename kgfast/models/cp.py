"""CP (Hitchcock 1927; Lacroix et al. 2018, arXiv 1806.07297): heads have separate rows."""

from typing import NoReturn

from torch import Tensor

from kgfast.models.base import Candidates, Model, Side, check_relation, query_rows
from kgfast.models.tables import Table
from kgfast.tables import is_table


class CP(Model):
    """CP: ``score(h, r, t) = sum_d u_hd r_d v_td`` (Lacroix et al. 2018, eq. 2).

    An entity has a row ``u`` as a head, and another row ``v`` as a tail. Training one row teaches
    nothing to the other. Inverse relations (:class:`kgfast.Reciprocal`) train both, and make CP as
    good as ComplEx.

    Parameters
    ----------
    entity : Tensor
        ``[N, 2D]``, rows ``u | v``; float32, float16, bfloat16 or float64; used in place.
    relation : Tensor
        ``[R, D]``.

    Raises
    ------
    ValueError, TypeError
        For widths that do not fit, and entities in files.

    Examples
    --------
    >>> import torch
    >>> model = CP(torch.tensor([[2.0, 7.0], [3.0, 0.5]]), torch.tensor([[5.0]]))
    >>> model.queries(torch.tensor([1]), torch.tensor([0]), "tail")
    tensor([[15.]])
    >>> model.candidates("tail").table
    tensor([[7.0000],
            [0.5000]])
    """

    score = "dot"
    scores_relations = True
    _planes = (2, 1)

    def __init__(self, entity: Table, relation: Table) -> None:
        if is_table(entity):
            raise TypeError("CP takes no entities in files: half of a row stands at each side")
        super().__init__(entity, relation)
        width = self.entity.shape[1]
        if width < 2 or width % 2:
            raise ValueError(
                f"entity must have an even number of columns (as a head, as a tail); got {width}"
            )
        self.dim = width // 2
        check_relation(self.relation, self.dim, "half as many as entities")

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        whole = super().candidates(side)
        return whole if side == "relation" else Candidates(self._half(whole.table, side))

    def first_columns(self, dim: int) -> NoReturn:
        """Raise a ValueError: a row has two halves."""
        raise ValueError("dims: CP cannot be cropped (split)")

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        rows = self._half(query_rows(self.entity, anchors), "tail" if side == "head" else "head")
        if side == "relation":
            return rows * self._half(query_rows(self.entity, relations), "tail")
        return rows * query_rows(self.relation, relations)

    def _half(self, rows: Tensor, side: Side) -> Tensor:
        return rows[:, : self.dim] if side == "head" else rows[:, self.dim :]
