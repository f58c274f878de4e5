"""PyG's models of ``torch_geometric.nn.kge``: ``test`` with a filter, in one sweep.

mean_rank, mrr, hits = kgfast.adapters.pyg.test(model, head, rel, tail, batch_size, known=known)
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import kge

from kgfast.adapters.foreign import block_scorer, check_agreement
from kgfast.eval import rank
from kgfast.graph import KnownTriples, as_columns
from kgfast.models import ComplEx, DistMult, Model, RotatE, Side, TransE

__all__ = ["from_pyg", "test"]

_BATCH = 16  # queries for a model of another class, which gathers [16, 1024, D] three times


def test(
    model: nn.Module,
    head_index: Tensor,
    rel_type: Tensor,
    tail_index: Tensor,
    batch_size: int | None = None,
    k: int = 10,
    known: KnownTriples | None = None,
    log: bool = True,
) -> tuple[float, float, float]:
    """Replace ``KGEModel.test``: ranks of the tails among all nodes, with an optional filter.

    Parameters
    ----------
    model : torch_geometric.nn.kge.KGEModel
        The model, whose mode stays, as in PyG; PyG's models have no dropout.
    head_index, rel_type, tail_index : Tensor
        Integers ``[T]``.
    batch_size : int, optional
        An argument of PyG's method; not needed.
    k : int
        The k of Hits@k.
    known : KnownTriples, optional
        Known answers are no candidates. None gives raw ranks, as in PyG.
    log : bool
        Show a progress bar.

    Returns
    -------
    tuple of float
        The mean rank, counted from 0 as in PyG, the MRR and Hits@k (counted from 1). Ties count
        half; PyG leaves ties in the order of a sort.

    Raises
    ------
    TypeError, ValueError
        If the model is not one of PyG's, or scores unlike the model of its name. For no triples,
        and for ids of another type or shape, unequal lengths, or out of range.
    """
    named = {"head_index": head_index, "rel_type": rel_type, "tail_index": tail_index}
    triples = torch.stack(as_columns(named), 1)
    if not len(triples):
        raise ValueError("head_index is empty: there is nothing to rank")
    ranks = rank(from_pyg(model), triples, known=known, sides=("tail",), progress=log)
    return ranks.mr - 1, ranks.mrr, ranks.hits(k)


test.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's


def from_pyg(model: nn.Module) -> Any:
    """Convert a model of ``torch_geometric.nn.kge`` to one that kgfast ranks and predicts with.

    The tables are the present ones. TransE's nodes are normalised, since TransE scores normalised
    nodes. RotatE has the Euclidean norm of the whole vector. Other models, and models with another
    ``p_norm``, are scored in blocks by their own ``forward``.

    Raises
    ------
    TypeError
        If ``model`` is no ``KGEModel``.
    ValueError
        If the converted model does not score like the original.
    """
    if not isinstance(model, kge.KGEModel):
        raise TypeError(
            f"model must be a torch_geometric.nn.kge.KGEModel; got {type(model).__name__}"
        )
    holder: Any = model
    with torch.no_grad():
        converted = _converted(holder)
        if converted is None:
            device = holder.node_emb.weight.device
            sizes = holder.num_nodes, holder.num_relations
            return block_scorer(model, _scores, *sizes, device, batch_size=_BATCH)
        margin = float(holder.margin) if isinstance(converted, RotatE) else 0.0
        check_agreement(
            converted,
            holder,
            f"{type(model).__name__} of PyG",
            in_their_terms=lambda scores: scores + margin,
        )
    return converted


def _converted(model: Any) -> Model | None:
    """Return the model of that name, if the model is one of PyG's own."""
    node, relation = model.node_emb.weight.detach(), model.rel_emb.weight.detach()
    kind = type(model)
    if kind is kge.TransE and model.p_norm in (1, 2):
        entity = functional.normalize(node, p=model.p_norm, dim=-1)
        return TransE(entity, relation, norm="l1" if model.p_norm == 1 else "l2")
    if kind is kge.DistMult:
        return DistMult(node, relation)
    if kind is kge.ComplEx:
        relation = torch.cat([relation, model.rel_emb_im.weight.detach()], 1)
        return ComplEx(_halves(model), relation)
    if kind is kge.RotatE:
        return RotatE(
            _halves(model), relation, gamma=float(model.margin), relation_format="phase", norm="l2"
        )
    return None


def _halves(model: Any) -> Tensor:
    return torch.cat([model.node_emb.weight.detach(), model.node_emb_im.weight.detach()], 1)


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    """Score all pairs by the model's own ``forward``, one after the other."""
    shape = len(anchors), len(ids)
    columns = anchors[:, None], relations[:, None], ids
    anchor, relation, candidate = (ids.expand(shape).reshape(-1) for ids in columns)
    heads, tails = (anchor, candidate) if side == "tail" else (candidate, anchor)
    return cast(Tensor, model(heads, relation, tails)).reshape(shape)
