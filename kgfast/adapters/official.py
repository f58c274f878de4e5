"""Official RotatE code (Sun et al. 2019) and its forks: ``test_step``, models, runs.

KGEModel.test_step = staticmethod(kgfast.adapters.official.test_step)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.adapters import ogb
from kgfast.adapters.foreign import block_scorer, check_agreement
from kgfast.adapters.official_runs import MODELS, official_model
from kgfast.eval import RankType, rank
from kgfast.graph import KnownTriples
from kgfast.models import SIDES, BlockScorer, Side
from kgfast.text import shown

__all__ = ["biokg_test_step", "from_official", "ogb_test_step", "test_step"]

_NEEDED = ("model_name", "nentity", "nrelation", "entity_embedding", "relation_embedding", "gamma")
_HITS = (1, 3, 10)
_BATCH = 16  # queries per batch for a model of another name, which gathers [16, 1024, 2 D]


def test_step(
    model: nn.Module,
    test_triples: Sequence[tuple[int, int, int]],
    all_true_triples: Sequence[tuple[int, int, int]],
    args: Any,
    *,
    ties: RankType = "realistic",
) -> dict[str, float]:
    """Replace ``KGEModel.test_step``: filtered ranks of heads and tails among all entities.

    The official code leaves ties in the order of an unstable sort; kgfast counts ties.

    Parameters
    ----------
    model : KGEModel
        The model, which is set to eval mode, as in the official code.
    test_triples, all_true_triples : sequence of (int, int, int)
        Triples to rank, and triples to filter by.
    args : Namespace
        Arguments of the official code; ``nentity``, ``nrelation`` and ``countries`` are read.
    ties : {"realistic", "optimistic", "pessimistic"}
        The rank among candidates with the target's score.

    Returns
    -------
    dict
        ``MRR``, ``MR``, ``HITS@1``, ``HITS@3``, ``HITS@10``.

    Raises
    ------
    TypeError, ValueError
        If the model is not of the official code, if its conversion scores differently, or if its
        ids are not those of ``args``. For Countries, which are measured by AUC-PR, and for no
        triples.
    """
    if getattr(args, "countries", False):
        raise ValueError(
            "Countries are measured by AUC-PR, which is no rank: keep KGEModel.test_step for "
            "Countries"
        )
    converted = from_official(model)
    for name in ("nentity", "nrelation"):
        stated = getattr(args, name, None)
        if stated is not None and stated != getattr(model, name):
            raise ValueError(f"args.{name} is {stated}, but the model has {getattr(model, name)}")
    for what, triples in (("test_triples", test_triples), ("all_true_triples", all_true_triples)):
        if triples is None:
            raise ValueError(f"{what} must be triples; got None")
    if not len(test_triples):
        raise ValueError("test_triples is empty")
    model.eval()
    metrics = rank(converted, test_triples, known=KnownTriples(all_true_triples)).metrics(ties)
    return {
        "MRR": metrics["mrr"],
        "MR": metrics["mr"],
        **{f"HITS@{k}": metrics[f"hits@{k}"] for k in _HITS},
    }


test_step.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's


def ogb_test_step(
    model: nn.Module, test_triples: Mapping[str, Any], args: Any, random_sampling: bool = False
) -> dict[str, float]:
    """Replace ``KGEModel.test_step`` in the fork of OGB's examples for ogbl-wikikg2.

    Ranks are among the given negatives, as in :func:`kgfast.adapters.ogb.evaluate`.

    Parameters
    ----------
    model : KGEModel
        The model, which is set to eval mode, as in OGB's code.
    test_triples : mapping
        A split of ogbl-wikikg2.
    args : Namespace
        Arguments of that code; ``neg_size_eval_train`` is read for random negatives.
    random_sampling : bool
        Draw negatives from torch's generator instead of taking the split's.

    Returns
    -------
    dict
        ``hits@1_list``, ``hits@3_list``, ``hits@10_list``, ``mrr_list``: means, as in OGB's code.

    Raises
    ------
    TypeError, ValueError, KeyError
        The errors of :func:`from_official` and :func:`kgfast.adapters.ogb.evaluate`.
    """
    return _among_negatives(model, test_triples, args, None, random_sampling)


def biokg_test_step(
    model: nn.Module,
    test_triples: Mapping[str, Any],
    args: Any,
    entity_dict: Mapping[str, tuple[int, int]],
    random_sampling: bool = False,
) -> dict[str, float]:
    """Replace ``KGEModel.test_step`` in the fork for ogbl-biokg, with ids within types.

    ``entity_dict`` has the first row of each type, and one past the last.
    """
    return _among_negatives(model, test_triples, args, entity_dict, random_sampling)


def _among_negatives(
    model: nn.Module,
    split: Mapping[str, Any],
    args: Any,
    entity_dict: Mapping[str, tuple[int, int]] | None,
    random_sampling: bool,
) -> dict[str, float]:
    converted = from_official(model)
    if not isinstance(split, Mapping) or "head" not in split:
        raise ValueError(f"test_triples must be a split with a head; got {shown(split)}")
    num_nodes = None if entity_dict is None else _num_nodes(entity_dict)
    if random_sampling:
        split = {**split, **_random_negatives(split, converted.num_entities, num_nodes, args)}
    model.eval()
    lists = ogb.lists(ogb.evaluate(converted, split, num_nodes=num_nodes))
    return {name: float(values.mean()) for name, values in lists.items()}


def _num_nodes(entity_dict: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the number of nodes of each type; types must follow each other."""
    first, sizes = 0, {}
    for name, (start, end) in sorted(entity_dict.items(), key=lambda item: item[1]):
        if start != first or end < start:
            raise ValueError(f"entity_dict: {name} begins at row {start}, not at {first}")
        sizes[name], first = end - start, end
    return sizes


def _random_negatives(
    split: Mapping[str, Any], num_entities: int, num_nodes: Mapping[str, int] | None, args: Any
) -> dict[str, Tensor]:
    """Draw ``head_neg`` and ``tail_neg``, within the type if there are types."""
    shape = (len(split["head"]), int(args.neg_size_eval_train))
    negatives = {}
    for side in SIDES:
        limits = torch.full((shape[0], 1), num_entities, dtype=torch.int64, device="cpu")
        if num_nodes is not None:
            sizes = [num_nodes[name] for name in split[f"{side}_type"]]
            limits = torch.tensor(sizes, dtype=torch.int64, device="cpu")[:, None]
        drawn = torch.rand(shape, dtype=torch.float64, device="cpu") * limits
        negatives[f"{side}_neg"] = torch.minimum(drawn.long(), limits - 1)
    return negatives


def from_official(model: nn.Module) -> Any:
    """Convert a ``KGEModel`` of the official code, or of a fork that keeps its ``forward``.

    RotatE, TransE, DistMult and ComplEx become the models of that name, with tables read in place.
    pRotatE is scored in blocks by its equation. A model of another name is scored in blocks by its
    own ``forward((positive, candidates), mode)``.

    Raises
    ------
    TypeError
        If ``model`` is no such model.
    ValueError
        If the converted model does not score like the original.
    """
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing or not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a KGEModel of the official RotatE code; {type(model).__name__} has no "
            f"{', '.join(missing) or 'parameters'}"
        )
    holder: Any = model
    entity, relation = holder.entity_embedding.detach(), holder.relation_embedding.detach()
    name, gamma = holder.model_name, float(holder.gamma)
    if name not in MODELS:
        return block_scorer(
            model,
            _scores,
            int(holder.nentity),
            int(holder.nrelation),
            entity.device,
            batch_size=_BATCH,
        )
    own = getattr(holder, "embedding_range", None), getattr(holder, "modulus", None)
    converted = official_model(name, name, entity, relation, gamma, *own)
    if isinstance(converted, BlockScorer):
        return converted
    margin = gamma if name in ("RotatE", "TransE") else 0.0
    check_agreement(
        converted,
        lambda h, r, t: holder(torch.stack([h, r, t], 1)),
        f"{name} of the official code",
        in_their_terms=lambda scores: scores + margin,
    )
    return converted


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    """Score candidates by the model's own ``forward``, which ignores the predicted column."""
    positive = torch.stack([anchors, relations, anchors], 1)
    scores: Tensor = model((positive, ids.expand(len(anchors), -1)), mode=f"{side}-batch")
    return scores
