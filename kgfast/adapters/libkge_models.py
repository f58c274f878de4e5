"""LibKGE's models as kgfast's: by their scorers and embedders."""

import copy
from typing import Any, cast

import torch
from kge.model import KgeModel, ReciprocalRelationsModel
from torch import Tensor, nn

from kgfast.adapters.affine import AffineModel, NotAffineError, Parts, Rows
from kgfast.adapters.agreement import check_agreement
from kgfast.adapters.libkge_checkpoints import rotate_of_phases
from kgfast.models import (
    CP,
    RESCAL,
    SIDES,
    BlockScorer,
    ComplEx,
    DistMult,
    Model,
    Reciprocal,
    Side,
    TransE,
)

_OF_PRODUCTS: dict[str, Any] = {
    "DistMultScorer": DistMult,
    "ComplExScorer": ComplEx,
    "CPScorer": CP,
    "RescalScorer": RESCAL,
}
_AFFINE = ("SimplEScorer", "ConvEScorer", "TransformerScorer")


def from_libkge(model: Any) -> Any:
    """A model of LibKGE as one that kgfast ranks and predicts with.

    RotatE, TransE (``l_norm`` 1 or 2), DistMult, ComplEx, CP, RESCAL and RelationalTucker3 become
    models of kgfast (the latter of RESCAL's equation); SimplE, ConvE and Transformer an
    :class:`~kgfast.adapters.affine.AffineModel`; all others are scored in blocks by ``score_sp``
    and ``score_po``. The reciprocal relations model becomes a :class:`kgfast.Reciprocal`. Scores
    are compared with LibKGE's on a sample of triples.

    Parameters
    ----------
    model : kge.model.KgeModel

    Raises
    ------
    TypeError
        If it is none.
    ValueError
        If it does not score as LibKGE does.
    """
    if not isinstance(model, KgeModel):
        raise TypeError(f"model must be a kge.model.KgeModel; got {type(model).__name__}")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            converted = _converted(model)
    finally:
        model.train(was_training)
    if converted is None:
        return BlockScorer(
            _Scores(model).scores,
            num_entities=model.dataset.num_entities(),
            num_relations=model.dataset.num_relations(),
            sides=SIDES,
            device=next(model.parameters()).device,
        )
    return converted


def _converted(model: Any) -> Any:
    scorer, is_reciprocal = model.get_scorer(), type(model) is ReciprocalRelationsModel
    subjects, relation, objects = (
        embedder.embed_all().detach()
        for embedder in (model.get_s_embedder(), model.get_p_embedder(), model.get_o_embedder())
    )
    converted: Any = None
    if model.get_s_embedder() is model.get_o_embedder():
        converted = _native(scorer, subjects, relation)
    if converted is not None:
        check_agreement(
            converted,
            lambda h, r, t: _tails(model, h, r, t).diagonal(),
            f"{type(model).__name__} of LibKGE",
        )
    else:
        converted = _affine(scorer, Parts([subjects], [relation], [objects]), is_reciprocal)
    if converted is None:
        return None
    return Reciprocal(converted, order="appended") if is_reciprocal else converted


def _tails(model: Any, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """The scores of tails, also of inverse relations, which ``score_sp`` knows as others."""
    return cast(Tensor, model.score_sp(h, r, t))


def _native(scorer: Any, entity: Tensor, relation: Tensor) -> Model | None:
    kind, norm = _kind(scorer), getattr(scorer, "_norm", None)
    if kind == "TransEScorer" and norm in (1, 2):
        return TransE(entity, relation, norm="l1" if norm == 1 else "l2")
    if kind == "RotatEScorer" and norm in (1, 2):
        return rotate_of_phases(entity, relation, int(norm))
    of_products = _OF_PRODUCTS.get(kind)
    return None if of_products is None else of_products(entity, relation)


def _kind(scorer: Any) -> str:
    """The class of a scorer, if it is LibKGE's own."""
    kind = type(scorer)
    return kind.__name__ if kind.__module__.startswith("kge.model.") else ""


def _affine(scorer: Any, parts: Parts, tails_only: bool) -> AffineModel | None:
    if _kind(scorer) not in _AFFINE:
        return None
    network = copy.deepcopy(scorer).double().eval().requires_grad_(False)

    def score(heads: Rows, relations: Rows, tails: Rows) -> Tensor:
        scores = network.score_emb(heads[0], relations[0], tails[0], combine="spo")
        return cast(Tensor, scores).reshape(len(heads[0]))

    try:
        return AffineModel(score, parts, network=network, sides=("tail",) if tails_only else SIDES)
    except NotAffineError:
        return None


class _Scores(nn.Module):
    """LibKGE's own scores of ranges of candidates."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def scores(self, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
        """As :class:`kgfast.BlockScorer` asks."""
        model: Any = self.model
        if side == "tail":
            return cast(Tensor, model.score_sp(anchors, relations, ids))
        return cast(Tensor, model.score_po(relations, anchors, ids))
