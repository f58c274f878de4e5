"""LibKGE's models as kgfast's models: by scorers and embedders."""

from typing import Any, cast

from kge.model import KgeModel, ReciprocalRelationsModel
from torch import Tensor

from kgfast.adapters.affine import Parts, frozen_affine
from kgfast.adapters.foreign import block_scorer, check_agreement, converting
from kgfast.adapters.libkge_checkpoints import model_of_tables
from kgfast.models import Reciprocal, Side

_AFFINE = ("SimplEScorer", "ConvEScorer", "TransformerScorer")


def from_libkge(model: Any) -> Any:
    """Convert a model of LibKGE to one that kgfast ranks and predicts with.

    RotatE, TransE (``l_norm`` 1 or 2), DistMult, ComplEx, CP, RESCAL and RelationalTucker3 become
    models of kgfast (RelationalTucker3 with RESCAL's equation). SimplE, ConvE and Transformer
    become an :class:`~kgfast.adapters.affine.AffineModel`. All other models are scored in blocks by
    ``score_sp`` and ``score_po``. The reciprocal relations model becomes a
    :class:`kgfast.Reciprocal`. Scores are compared with LibKGE's on a sample of triples.

    Parameters
    ----------
    model : kge.model.KgeModel

    Raises
    ------
    TypeError
        If ``model`` is no KgeModel.
    ValueError
        If the converted model does not score like LibKGE.
    """
    if not isinstance(model, KgeModel):
        raise TypeError(f"model must be a kge.model.KgeModel; got {type(model).__name__}")
    with converting(model):
        converted = _converted(model)
    if converted is None:
        sizes = model.dataset.num_entities(), model.dataset.num_relations()
        return block_scorer(model, _scores, *sizes, next(model.parameters()).device)
    return converted


def _converted(model: Any) -> Any:
    scorer, is_reciprocal = model.get_scorer(), type(model) is ReciprocalRelationsModel
    subjects, relation, objects = (
        embedder.embed_all().detach()
        for embedder in (model.get_s_embedder(), model.get_p_embedder(), model.get_o_embedder())
    )
    converted: Any = None
    if model.get_s_embedder() is model.get_o_embedder():
        kind = _kind(scorer).removesuffix("Scorer").lower()
        converted = model_of_tables(kind, getattr(scorer, "_norm", None), subjects, relation)
    if converted is not None:
        check_agreement(
            converted,
            # score_sp treats inverse relations like all relations
            lambda h, r, t: cast(Tensor, model.score_sp(h, r, t)).diagonal(),
            f"{type(model).__name__} of LibKGE",
        )
    elif _kind(scorer) in _AFFINE:
        parts = Parts([subjects], [relation], [objects])
        converted = frozen_affine(
            scorer,
            lambda network, h, r, t: network.score_emb(h[0], r[0], t[0], combine="spo"),
            parts,
            tails_only=is_reciprocal,
        )
    if converted is None:
        return None
    return Reciprocal(converted, order="appended") if is_reciprocal else converted


def _kind(scorer: Any) -> str:
    """Return the class name of a scorer of LibKGE, "" for any other."""
    kind = type(scorer)
    return kind.__name__ if kind.__module__.startswith("kge.model.") else ""


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    if side == "tail":
        return cast(Tensor, model.score_sp(anchors, relations, ids))
    return cast(Tensor, model.score_po(relations, anchors, ids))
