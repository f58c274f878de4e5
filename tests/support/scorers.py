"""Models as functions of blocks: what a user writes where there are no queries."""

import torch

from kgfast import BlockScorer
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score


def canonical_function(model, dtype=torch.float64):
    """Make a function of a model's canonical scores, of relations too where it has them."""

    def scores(anchors, relations, side, candidate_ids):
        candidates = model.candidates(side)
        queries = model.queries(anchors, relations, side)
        rows = candidates.table[candidate_ids]
        bias = None if candidates.bias is None else candidates.bias[candidate_ids]
        return canonical_scores(queries[:, None], rows, get_score(model.score), bias).to(dtype)

    return scores


def as_blocks(model, *, dtype=torch.float64, **options):
    return BlockScorer(
        canonical_function(model, dtype),
        num_entities=model.num_entities,
        num_relations=model.num_relations,
        **options,
    )


class Recorded:
    """A function of a score matrix that remembers what it was asked for."""

    def __init__(self, matrix):
        self.matrix, self.calls = matrix, []

    def __call__(self, anchors, relations, side, candidate_ids):
        self.calls.append((anchors.tolist(), side, candidate_ids.tolist()))
        return self.matrix[anchors][:, candidate_ids]
