"""Relation prediction, the auxiliary task of Chen et al. (2021) and of RSCF (Kim et al. 2025)."""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kgfast import ops
from kgfast.losses.sampled import distinct_ids
from kgfast.models import MED, ConvE, Model, Reciprocal
from kgfast.models.base import candidates_at
from kgfast.ops.checks import check_index
from kgfast.ops.row_gradients import read_rows
from kgfast.ops.values import safe_ids

_NUMBERS = 1 << 22  # numbers of queries in memory at once: 16 MiB


def relation_logits(model: Model, heads: Tensor, tails: Tensor, *, sparse: bool = False) -> Tensor:
    """Score every relation between heads and tails, with gradients.

    ``torch.nn.functional.cross_entropy(logits, relations)`` is the auxiliary objective of Chen et
    al. 2021 (arXiv 2110.02834, section 3), with ``loss.relation_weight`` of a config as its weight.
    The exact form of RSCF's term is not known (docs/how-to/med_rscf.md).

    Parameters
    ----------
    model : Model
        Any model of kgfast but ConvE and temporal ones. For a :class:`kgfast.Reciprocal`, inverse
        relations are scored too, in the order of the relation table. For croppable embeddings (MED)
        the widest sub-model scores.
    heads, tails : Tensor
        int64 ``[B]``.
    sparse : bool
        Make row gradients for the entity table (:class:`kgfast.RowGradients`).

    Returns
    -------
    Tensor
        ``[B, R]``, float32 (float64 for a float64 table), without gamma. Models that compare a
        query of head and tail with relations take one product. For other models, the queries of all
        relations are made in blocks, and once more for the gradients. A ValueError or TypeError
        names ids that do not fit, and ConvE.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [-2.0]]))
    >>> relation_logits(model, torch.tensor([0]), torch.tensor([1]))
    tensor([[ 0., -3.]])
    """
    while isinstance(model, MED | Reciprocal):
        model = model.model
    if isinstance(model, ConvE):
        raise TypeError("ConvE would run the network for every relation of every triple")
    if model.num_times is not None:
        raise TypeError("a temporal model scores relations at a time, which is not given here")
    check_index("heads", heads, (None,), model.entity)
    check_index("tails", tails, (len(heads),), model.entity)
    heads = safe_ids("heads", heads, model.num_entities)
    tails = safe_ids("tails", tails, model.num_entities)
    if sparse:
        distinct, (heads, tails) = distinct_ids(heads, tails, of=model.num_entities)
        model = model.with_entity(read_rows(model.entity, distinct)[1])
    if model.scores_relations:
        queries = model.queries(heads, tails, "relation")
        return ops.pairwise_scores(queries, model.candidates("relation").table, model.score)
    candidates = candidates_at(model, "tail", None)

    def of_block(relations: Tensor) -> Tensor:
        count = len(relations)
        anchors = heads.repeat_interleave(count)
        queries = model.queries(anchors, relations.repeat(len(heads)), "tail")
        index = tails.repeat_interleave(count)[:, None]
        scores = ops.indexed_scores(
            queries, candidates.table, index, model.score, factor=candidates.factor
        )
        return scores.view(-1, count)

    width = max(1, len(heads) * candidates.table.shape[1])
    ids = torch.arange(len(model.relation), dtype=torch.int64, device=heads.device)
    blocks = ids.split(max(1, _NUMBERS // width))
    if len(blocks) == 1:
        return of_block(ids)
    run = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([run(block) for block in blocks], 1)
