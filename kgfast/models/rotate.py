"""RotatE (Sun et al. 2019, arXiv 1902.10197): relations rotate complex entity embeddings."""

import math
from functools import partial
from typing import Literal

from torch import Tensor, is_grad_enabled, nn

from kgfast import ops
from kgfast.kernels.backend import Composition
from kgfast.models.base import (
    EPSILON,
    GAMMA,
    Model,
    Side,
    check_option,
    check_relation,
    distinct_relations,
    query_rows,
)
from kgfast.models.complex_rows import Complex, Layout, check_layout, product, split
from kgfast.models.tables import Table

RelationFormat = Literal["raw", "phase", "complex"]


class RotatE(Model):
    """RotatE: ``score(h, r, t) = - sum_k |h_k e^{i phase_k} - t_k|`` (Sun et al. 2019, eq. 4).

    Parameters
    ----------
    entity : Tensor
        ``[N, 2D]`` complex rows; float32, float16, bfloat16 or float64; used in place.
    relation : Tensor
        ``[R, D]``, or ``[R, 2D]`` for ``relation_format="complex"``.
    gamma : float
        Margin, which losses add to scores. With ``raw`` relations it sets the range ``(gamma + 2) /
        D``.
    relation_format : {"raw", "phase", "complex"}
        ``raw``: phase = relation * pi / range (official code, DGL-KE); ``phase``: radians (LibKGE,
        GraphVite); ``complex``: the rotation itself, as stored, in the layout of the entities
        (PyKEEN).
    norm : {"modulus", "l2"}
        Sum of moduli (the paper's code) or Euclidean norm of the whole vector (PyKEEN, PyG).
    layout : {"halves", "interleaved"}
        ``re | im`` (official code, LibKGE, DGL-KE) or ``re0 im0 re1 im1 ...`` (PyKEEN, GraphVite),
        the layout of complex numbers in memory.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit each other, or an unknown format, norm or layout.

    Examples
    --------
    >>> import torch
    >>> model = RotatE.init(num_entities=5, num_relations=2, dim=4, seed=0)
    >>> model.queries(torch.tensor([0, 1]), torch.tensor([0, 1]), "tail").shape
    torch.Size([2, 8])
    """

    _planes = (2, 1)
    _is_uniform = True

    def __init__(
        self,
        entity: Table,
        relation: Table,
        *,
        gamma: float = GAMMA,
        relation_format: RelationFormat = "raw",
        norm: Literal["modulus", "l2"] = "modulus",
        layout: Layout = "halves",
    ) -> None:
        super().__init__(entity, relation)
        check_option("relation_format", relation_format, ("raw", "phase", "complex"))
        check_option("norm", norm, ("modulus", "l2"))
        if not (math.isfinite(gamma) and gamma > -EPSILON):
            raise ValueError(f"gamma must be finite and above {-EPSILON}; got {gamma}")
        self.dim = self._range_dim = check_layout("entity", self.entity, layout)
        width = 2 * self.dim if relation_format == "complex" else self.dim
        check_relation(self.relation, width, f"{relation_format!r} for {self.dim} dimensions")
        self.gamma, self.layout = gamma, layout
        self.relation_format, self.norm = relation_format, norm
        of_moduli = "rotate" if layout == "halves" else "rotate_interleaved"
        self.score = of_moduli if norm == "modulus" else "l2"

    @property
    def embedding_range(self) -> float:
        """Return ``(gamma + 2) / dim`` of the whole model: bounds of fresh rows and raw phases."""
        return (self.gamma + EPSILON) / self._range_dim

    def check_range(self) -> None:
        """Raise unless a reader finds the range: not for raw phases of ``first_columns``."""
        if self.relation_format == "raw" and self.dim != self._range_dim:
            raise ValueError(
                f"model: raw phases of the first {self.dim} of {self._range_dim} dimensions have "
                "the range of all: save the whole model"
            )

    @property
    def phase_unit(self) -> float:
        """Return the radians of one unit of a relation's entry."""
        return math.pi / self.embedding_range if self.relation_format == "raw" else 1.0

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        anchor, turns_back = query_rows(self.entity, anchors), side == "head"
        if is_grad_enabled() and ops.serves_composition(self.entity, self.relation):
            kind = "multiply_complex" if self.relation_format == "complex" else "rotate"
            how = Composition(kind, turns_back, self.layout == "interleaved", self.phase_unit)
            return ops.compose(anchor, query_rows(self.relation, relations), how)
        return product(anchor, self.rotations(relations), self.layout, conjugates=turns_back)

    def rotations(self, relations: Tensor) -> Complex:
        """Return unit complex numbers ``[B, D]``; without gradients, bits are equal everywhere."""
        if self.relation_format == "complex":
            return split(query_rows(self.relation, relations), self.layout)
        distinct, position = distinct_relations(relations)
        phases = query_rows(self.relation, distinct)
        if self.relation_format == "raw":
            phases = phases * self.phase_unit
        parts = (phases.cos(), phases.sin()) if phases.requires_grad else ops.cos_sin(phases)
        if position is None:
            return Complex(*parts)
        return Complex(*map(partial(nn.functional.embedding, position), parts))

    def crop_width(self, dim: int) -> int | None:
        """Return :meth:`Model.crop_width`; the Euclidean norm of ``re | im`` rows has no crops."""
        if self.score != "l2":
            return dim
        if self.layout == "halves":
            raise ValueError(
                "dims: RotatE with norm='l2' and layout='halves' cannot be cropped; store the "
                "embeddings interleaved"
            )
        return 2 * dim
