"""Scorers of a side of a model: queries and candidates, or blocks of scores.

If the model has queries for relations, relations are candidates of the model's score. Else the
score of a relation is the canonical score of the triple's tail, computed for all relations of a
query in blocks.
"""

from typing import Any

from torch import Tensor

from kgfast.kernels.reference.canonical import crop_scores
from kgfast.kernels.scores import get_score
from kgfast.models.base import Model, Side, candidates_at, operator_width
from kgfast.models.blocks import BlockScorer
from kgfast.models.evaluated import evaluated_queries

_BLOCK, _BATCH = 16, 64  # 1,024 triples at once


def blocks_at(model: Any, side: Side, dim: int | None) -> BlockScorer | None:
    """Return the scorer of a side in blocks; None if the model has queries and candidates.

    A model that is scored in blocks has a method ``in_blocks(side, dims)`` with the same results.
    A NotImplementedError names a model without queries for relations.
    """
    if (in_blocks := getattr(model, "in_blocks", None)) is not None:
        blocks: BlockScorer | None = in_blocks(side, dim)
        return blocks
    if side != "relation":
        return None
    if getattr(model, "num_times", None) is not None:
        raise NotImplementedError(f"{type(model).__name__} ranks no relations: they are at a time")
    if isinstance(model, Model):
        return None if model.scores_relations else _triple_scores(model, dim)
    try:
        candidates_at(model, "relation", dim)
    except Exception as error:
        raise NotImplementedError(
            f"{type(model).__name__} ranks no relations: give the model queries(heads, tails, "
            '"relation") and candidates("relation"), or use kgfast.BlockScorer with a function '
            "that scores relations"
        ) from error
    return None


def is_in_blocks(model: Any) -> bool:
    """Return whether a model has no queries at all, so that all sides are scored in blocks."""
    return bool(getattr(model, "is_in_blocks", False))


def _triple_scores(model: Model, dim: int | None) -> BlockScorer:
    """Return canonical tail scores of a model's triples, as scores of relations."""
    candidates = candidates_at(model, "tail", dim)
    table, score, bias = candidates.table, get_score(model.score), candidates.bias
    width = None if dim is None else operator_width(model, dim)
    crop = score.num_features(table.shape[1]) if width is None else width

    def scores(heads: Tensor, tails: Tensor, side: Side, ids: Tensor) -> Tensor:
        relations, ends = ids.repeat_interleave(len(heads)), tails.repeat(len(ids))
        queries = evaluated_queries(model, heads.repeat(len(ids)), relations, "tail", dim)
        factor = None if candidates.factor is None else candidates.factor[ends]
        values = crop_scores(queries, table[ends], score, [crop], factor)[0]
        values = values if bias is None else values + bias.expand(len(table))[ends].double()
        return values.view(len(ids), len(heads)).T

    scores.__qualname__ = f"{type(model).__name__} of triples"
    return BlockScorer(
        scores,
        model.num_entities,
        model.num_relations,
        block=_BLOCK,
        batch_size=_BATCH,
        sides=("relation",),
        device=table.device,
    )
