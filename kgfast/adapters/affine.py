"""Any score that is affine in the candidate, as a dot product.

DistMult, RESCAL, TuckER, ConvE and many other models have ``score = q(anchor, relation) . candidate
+ c``. The query ``q`` is the gradient of the score at a candidate of zeros, and ``c`` is the score
there. So one class serves all such models, of every library whose scores torch differentiates.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.adapters.foreign import sample_ids
from kgfast.models import SIDES, Candidates, Side

Rows = list[Tensor]
Score = Callable[[Rows, Rows, Rows], Tensor]  # heads, relations, tails, each [B, ...] -> [B]

_CHUNK = 1 << 21  # float64 numbers of the rows of relations at once: 16 MiB
_SLACK = 1e-9  # error of float64 sums in another order, relative to the magnitudes that are summed


class NotAffineError(ValueError):
    """Error for a score that is not affine in the candidate."""


@dataclass(frozen=True)
class Parts:
    """Representations of a model: lists of tables, real or complex, ``[N, ...]``."""

    heads: Rows
    relations: Rows
    tails: Rows

    def of(self, side: Side) -> tuple[Rows, Rows]:
        """Return the tables of a side's anchors, and of the side's candidates."""
        return (self.heads, self.tails) if side == "tail" else (self.tails, self.heads)


class AffineModel:
    """Model of dot products, made from a score that is affine in the candidate.

    Queries are gradients of the score in float64, rounded once. A sample of triples checks that the
    score is affine, or raises NotAffineError. Ranking sets ``network``, which the score calls, to
    eval mode.
    """

    score = "dot"
    query_chunk = 128  # the score may be that of a network

    def __init__(
        self,
        score: Score,
        parts: Parts,
        *,
        network: nn.Module | None = None,
        sides: Sequence[Side] = SIDES,
    ) -> None:
        self._score, self._parts, self.network = score, parts, network
        self.num_entities = len(parts.tails[0])
        self.num_relations = len(parts.relations[0])
        self._tables: dict[Side, Tensor] = {}
        for side in sides:
            self._check(side)
            features = [_real(table) for table in parts.of(side)[1]]
            self._tables[side] = torch.cat([*features, torch.ones_like(features[0][:, :1])], 1)
        self.dim = max(table.shape[1] for table in self._tables.values())

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of queries: float64 for float64 tables, else float32."""
        double = (torch.float64, torch.complex128)
        return torch.float64 if self._parts.tails[0].dtype in double else torch.float32

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the tables of a side as one, and a column of ones for the constant."""
        self._check_side(side)
        return Candidates(self._tables[side])

    @torch.no_grad()
    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Return the gradients of the scores, ``[B, F]``."""
        self._check_side(side)
        sizes = [table[0].numel() for table in (*self._parts.relations, *self._parts.tails)]
        chunk = max(1, _CHUNK // max(*sizes, 64 * max(sizes[len(self._parts.relations) :])))
        none = self._tables[side][:0].double()
        rows = [
            torch.cat(self._linear(*pair, side), 1)
            for pair in zip(anchors.split(chunk), relations.split(chunk), strict=True)
        ]
        return torch.cat([none, *rows]).to(self.dtype)

    def _check_side(self, side: Side) -> None:
        if side not in self._tables:
            raise NotImplementedError(
                f"this AffineModel predicts {', '.join(self._tables)}, not {side}"
            )

    def _linear(self, anchors: Tensor, relations: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        """Return gradient ``[B, F]`` and constant ``[B, 1]`` in float64."""
        anchor_tables, candidate_tables = self._parts.of(side)
        fixed = _rows(anchor_tables, anchors), _rows(self._parts.relations, relations)
        with torch.inference_mode(False), torch.enable_grad():
            # Rows made in inference mode can be in no graph; copies can.
            anchor, relation = ([row.clone() for row in rows] for rows in fixed)
            free = [
                _wide(table[:0]).new_zeros(len(anchors), *table.shape[1:]).requires_grad_()
                for table in candidate_tables
            ]
            constant = self._of_side(anchor, relation, free, side)
            gradients = torch.autograd.grad(
                constant.sum(), free, allow_unused=True, materialize_grads=True
            )
        return torch.cat([_real(gradient) for gradient in gradients], 1), constant.detach()[:, None]

    def _of_side(self, anchor: Rows, relation: Rows, candidate: Rows, side: Side) -> Tensor:
        head, tail = (anchor, candidate) if side == "tail" else (candidate, anchor)
        return self._score(head, relation, tail)

    def _check(self, side: Side) -> None:
        anchor_tables, tables = self._parts.of(side)
        device = tables[0].device
        anchors, candidates = (
            sample_ids(self.num_entities, shift, device) for shift in (0, self.num_entities // 2)
        )
        relations = sample_ids(self.num_relations, 0, device)
        gradient, constant = self._linear(anchors, relations, side)
        rows = _rows(tables, candidates)
        fixed = _rows(anchor_tables, anchors), _rows(self._parts.relations, relations)
        with torch.no_grad():
            score = self._of_side(*fixed, rows, side)
        terms = gradient * torch.cat([_real(row) for row in rows], 1)
        terms = torch.cat([terms, constant], 1)
        slack = _SLACK * terms.abs().sum(1) + 1e-300
        if not bool(((terms.sum(1) - score).abs() <= slack).all()):
            raise NotAffineError(f"the score is not affine in the {side}")


def frozen_affine(
    network: nn.Module, score: Callable[..., Any], parts: Parts, *, tails_only: bool
) -> AffineModel | None:
    """Return the model of ``score(network, heads, relations, tails)`` in float64, if affine."""
    frozen = copy.deepcopy(network).double().eval().requires_grad_(False)

    def of_rows(heads: Rows, relations: Rows, tails: Rows) -> Tensor:
        scores: Tensor = score(frozen, heads, relations, tails)
        return scores.reshape(len(heads[0]))

    try:
        return AffineModel(of_rows, parts, network=frozen, sides=("tail",) if tails_only else SIDES)
    except NotAffineError:
        return None


def _wide(rows: Tensor) -> Tensor:
    return rows.to(torch.complex128 if rows.is_complex() else torch.float64)


def _rows(tables: Rows, ids: Tensor) -> Rows:
    return [_wide(table[ids]) for table in tables]


def _real(rows: Tensor) -> Tensor:
    """Return rows ``[B, F]`` of reals; complex numbers are interleaved."""
    rows = torch.view_as_real(rows.resolve_conj()) if rows.is_complex() else rows
    return rows.flatten(1) if rows.ndim > 1 else rows[:, None]
