"""TNTComplEx (Lacroix et al. 2020, arXiv 2004.04926): ComplEx of quads (h, r, t, time)."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from kgfast.models.complex import ComplEx
from kgfast.models.complex_rows import Layout, product, split
from kgfast.models.tables import Table, fresh_table, held_table
from kgfast.ops.differentiable import full_precision


class TNTComplEx(ComplEx):
    """TNTComplEx: ``score(h, r, t, l) = Re(sum_k h_k (r_k l_k + s_k) conj(t_k))``.

    See Lacroix et al. 2020: ``l`` is the time, and ``s`` a part of the relation without time.
    :func:`kgfast.rank` takes quads. Methods take pairs ``relation * num_times + time`` as
    relations, of which there are :attr:`num_relations`.

    Parameters
    ----------
    entity, layout
        As :class:`kgfast.ComplEx` takes them.
    relation, static_relation : Tensor
        ``[R, 2D]``: ``r`` and ``s``. With zeros as ``r`` the model is ComplEx.
    time : Tensor
        ``[T, 2D]``. A ValueError or TypeError names tables that do not fit each other.

    Examples
    --------
    >>> one, tables = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> model = TNTComplEx(tables, one, 0 * one, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    >>> model.num_times, model.queries(torch.tensor([0, 0]), torch.tensor([0, 1]), "tail").tolist()
    (2, [[1.0, 0.0], [-1.0, 0.0]])
    """

    scores_relations = False
    table_names = ("entity", "relation", "static_relation", "time")
    static_relation: Tensor
    time: Tensor

    def __init__(
        self,
        entity: Table,
        relation: Table,
        static_relation: Table,
        time: Table,
        *,
        layout: Layout = "halves",
    ) -> None:
        super().__init__(entity, relation, layout=layout)
        self._hold("static_relation", held_table("static_relation", static_relation))
        self._hold("time", held_table("time", time))
        self.num_times, (rows, width) = len(self.time), self.relation.shape
        for name, count in (("static_relation", rows), ("time", max(1, self.num_times))):
            held, home = getattr(self, name), self.entity.device
            if held.shape != (count, width) or held.device != home:
                got = f"{list(held.shape)} on {held.device}"
                raise ValueError(f"{name} must be [{count}, {width}] on {home}; got {got}")

    @classmethod
    def init(  # type: ignore[override]
        cls, num_entities: int, num_relations: int, dim: int, *, num_times: int, **options: Any
    ) -> Self:
        """Make a model of fresh embeddings like :meth:`Model.init`; relations are without times."""
        seed = options.get("seed")
        generator = None if seed is None else torch.Generator().manual_seed(seed + 2)
        more = [fresh_table((rows, 2 * dim)) for rows in (num_relations, num_times)]
        cls._draw(more[0], more[1], 0.0, generator)
        options |= zip(cls.table_names[2:], more, strict=True)
        return super().init(num_entities, num_relations, dim, **options)

    @property
    def num_relations(self) -> int:
        return len(self.relation) * len(self.time)

    def relation_factors(
        self, ids: Tensor, read: Callable[[Tensor, Tensor], Tensor] = torch.embedding
    ) -> list[Tensor]:
        """Return the parts of relations with and without their times, ``[B, 2D]`` each."""
        relations, times = ids // len(self.time), ids % len(self.time)
        time = split(full_precision(read(self.time, times)), self.layout)
        rows = full_precision(read(self.relation, relations))
        timed = product(rows, time, self.layout, conjugates=False)
        return [timed, read(self.static_relation, relations)]

    def smoothness(self) -> Tensor:
        """Return the temporal regularizer: the mean of ``sum_k |l_(i+1),k - l_i,k|^3``.

        See Lacroix et al. 2020; the exponent is that of the authors' code.
        """
        re, im = split(full_precision(self.time).diff(dim=0), self.layout)
        return (re * re + im * im).pow(1.5).sum() / max(1, len(re))
