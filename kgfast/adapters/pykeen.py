"""PyKEEN's models and evaluators (Ali et al. 2021; pykeen 1.11): ``evaluator="kgfast"``.

Importing this file registers :class:`KgfastEvaluator` with PyKEEN's resolver. So pipelines, early
stopping and hyper-parameter searches find the evaluator by name.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator, RankBasedMetricResults, evaluator_resolver
from pykeen.models import ERModel
from pykeen.nn import modules as interactions
from torch import Tensor, nn

from kgfast.adapters.affine import AffineModel, Parts, Rows, frozen_affine
from kgfast.adapters.foreign import block_scorer, check_agreement, converting
from kgfast.eval import RANK_TYPES, rank
from kgfast.graph import KnownTriples, as_integers
from kgfast.models import RESCAL, ComplEx, DistMult, Model, Reciprocal, RotatE, Side, TransE

__all__ = ["KgfastEvaluator", "UnknownModelError", "from_pykeen"]

# Dtypes of ranks in PyKEEN, so that metrics agree in their last digits.
_KEPT_AS = {"optimistic": np.int64, "realistic": np.float32, "pessimistic": np.int64}


# Interactions that are linear in the candidate by their equations; a check confirms this for each
# model.
_AFFINE = (
    interactions.AutoSFInteraction,
    interactions.ConvEInteraction,
    interactions.CPInteraction,
    interactions.DistMAInteraction,
    interactions.HolEInteraction,
    interactions.MultiLinearTuckerInteraction,
    interactions.QuatEInteraction,
    interactions.SimplEInteraction,
    interactions.TransformerInteraction,
    interactions.TuckERInteraction,
)
_SCORING = ("score_t", "score_h", "_get_representations", "_get_entity_len")


class UnknownModelError(TypeError):
    """Error for a model that kgfast does not convert."""


def from_pykeen(model: Any) -> Any:
    """Convert a PyKEEN model to one that kgfast ranks and predicts with.

    The tables are the present ones, read in place if PyKEEN's layout allows. RotatE, TransE,
    DistMult, ComplEx and RESCAL become the models of that name. Interactions that are affine in the
    candidate (TuckER, HolE, CP, QuatE, SimplE, ConvE ...) become an
    :class:`~kgfast.adapters.affine.AffineModel`. All other interactions of PyKEEN are scored in
    blocks (:class:`kgfast.BlockScorer`). Inverse relations become a :class:`kgfast.Reciprocal`.
    Scores are compared with PyKEEN's on a sample of triples.

    Parameters
    ----------
    model : pykeen.models.ERModel

    Returns
    -------
    Model
        The model, with ``num_relations`` of the graph, without inverses. For TransE with
        ``power_norm`` and ``p=2``, scores are square roots, which have the same order.

    Raises
    ------
    UnknownModelError
        If the model is no ``ERModel``, overrides scoring, or has an interaction outside PyKEEN. The
        error is a TypeError.
    ValueError
        If the converted model does not score like PyKEEN: a wrong conversion is never silent.
    """
    _check(model)
    with converting(model):
        native = _native(model)
        if native is not None:
            _check_scores(model, native)
        converted: Any = native or _affine(model)
        if converted is not None:
            is_reciprocal = model.use_inverse_triples
            return Reciprocal(converted, order="interleaved") if is_reciprocal else converted
    return block_scorer(model, _scores, model.num_entities, model.num_real_relations, model.device)


def _check(model: Any) -> None:
    kind = type(model)
    overridden = [n for n in _SCORING if getattr(kind, n, None) is not getattr(ERModel, n)]
    if not isinstance(model, ERModel):
        why = f"model must be a pykeen.models.ERModel; got {kind.__name__}"
    elif overridden:
        why = f"{kind.__name__} has a {overridden[0]} of its own"
    elif type(_unclamped(model.interaction)).__module__ != interactions.__name__:
        why = f"{type(model.interaction).__name__} is none of PyKEEN's interactions"
    else:
        return
    raise UnknownModelError(f"{why}: rank it through kgfast.BlockScorer")


def _unclamped(interaction: nn.Module) -> nn.Module:
    """Return the interaction inside a clamp that clamps nothing, as in PyKEEN's SimplE."""
    if type(interaction) is interactions.ClampedInteraction and interaction.clamp_score is None:
        base: nn.Module = interaction.base
        return base
    return interaction


def _tables(representations: Any) -> Rows:
    return [representation(indices=None).detach() for representation in representations]


def _real(rows: Tensor) -> Tensor:
    """Return complex rows ``[N, D]`` as reals ``[N, 2D]``, in place if they lie so."""
    return torch.view_as_real(rows.contiguous()).flatten(1)


def _rotate(entity: Tensor, relation: Tensor, norm: Literal["modulus", "l2"] = "l2") -> RotatE:
    return RotatE(
        _real(entity), _real(relation), norm=norm, relation_format="complex", layout="interleaved"
    )


def _native(model: Any) -> Model | None:
    """Return the model of that name, if it has one entity and one relation table."""
    interaction = _unclamped(model.interaction)
    build = _NATIVE.get(type(interaction))
    both = model.entity_representations, model.relation_representations
    if build is None or any(len(parts) != 1 for parts in both):
        return None
    entity, relation = (_tables(parts)[0].resolve_conj() for parts in both)
    return build(interaction, entity, relation)


def _transe(interaction: Any, entity: Tensor, relation: Tensor) -> Model | None:
    if interaction.p not in (1, 2):
        return None
    return TransE(entity, relation, norm="l1" if interaction.p == 1 else "l2")


_Build = Callable[[Any, Tensor, Tensor], Model | None]
_NATIVE: dict[type, _Build] = {
    # PyKEEN ignores p and power_norm of RotatE, and takes the norm of the whole vector.
    interactions.RotatEInteraction: lambda _, entity, relation: _rotate(entity, relation),
    interactions.TransEInteraction: _transe,
    interactions.DistMultInteraction: lambda _, entity, relation: DistMult(entity, relation),
    interactions.RESCALInteraction: lambda _, entity, relation: RESCAL(entity, relation.flatten(1)),
    interactions.ComplExInteraction: lambda _, entity, relation: ComplEx(
        _real(entity), _real(relation), layout="interleaved"
    ),
}


def _affine(model: Any) -> AffineModel | None:
    """Return a dot product if the interaction is affine in the candidate of each side."""
    interaction = _unclamped(model.interaction)
    if type(interaction) not in _AFFINE:
        return None
    head_indices: Any = interaction.head_indices
    tail_indices: Any = interaction.tail_indices
    entities = _tables(model.entity_representations)
    parts = Parts(
        [entities[i] for i in head_indices],
        _tables(model.relation_representations),
        [entities[i] for i in tail_indices],
    )

    def score(network: Any, *rows: Any) -> Any:
        h, r, t = (tables[0] if len(tables) == 1 else tables for tables in rows)
        return network(h=h, r=r, t=t)

    # None for ConvE's heads, and for TuckER with its own norm
    return frozen_affine(interaction, score, parts, tails_only=model.use_inverse_triples)


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    columns = (anchors, relations) if side == "tail" else (relations, anchors)
    batch = model._prepare_batch(torch.stack(columns, 1), index_relation=int(side == "tail"))
    if side == "tail":
        return cast(Tensor, model.score_t(batch, tails=ids))
    if model.use_inverse_triples:
        return cast(Tensor, model.score_h_inverse(rt_batch=batch, heads=ids))
    return cast(Tensor, model.score_h(batch, heads=ids))


def _check_scores(model: Any, converted: Model) -> None:
    interaction = _unclamped(model.interaction)

    def theirs(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        entity, relation = model.entity_representations[0], model.relation_representations[0]
        return cast(Tensor, model.interaction(entity(h), relation(r), entity(t)))

    squared = isinstance(converted, TransE) and interaction.power_norm and interaction.p == 2
    check_agreement(
        converted,
        theirs,
        f"{type(model).__name__} of PyKEEN",
        in_their_terms=(lambda scores: -(scores**2)) if squared else lambda scores: scores,
    )


class KgfastEvaluator(RankBasedEvaluator):
    """PyKEEN's ``RankBasedEvaluator`` with ranks that kgfast counts.

    All options, metrics, rank types and confidence intervals are those of PyKEEN's class.

    Parameters
    ----------
    nan : {"error", "worst"}
        Treatment of a NaN or an infinity in the embeddings. (PyKEEN gives a NaN the rank 0.5.)
    **kwargs
        Arguments of ``pykeen.evaluation.RankBasedEvaluator``.
    """

    def __init__(self, *, nan: Literal["error", "worst"] = "error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nan = nan

    def evaluate(
        self, model: Any, mapped_triples: Tensor, *args: Any, **options: Any
    ) -> RankBasedMetricResults:
        """Evaluate like PyKEEN's class; batch and slice sizes are not needed.

        PyKEEN ranks itself, and a warning says so, for unknown models, a restriction of
        entities or relations, inductive modes, and relations as targets.
        """
        call = inspect.signature(super().evaluate).bind(model, mapped_triples, *args, **options)
        call.apply_defaults()
        arguments = call.arguments
        _check_triples("mapped_triples", mapped_triples)
        extra = arguments["additional_filter_triples"]
        if extra is None or isinstance(extra, Tensor) or not isinstance(extra, Iterable):
            extra = [] if extra is None else [extra]
        extra = list(extra)
        for triples in extra:
            _check_triples("additional_filter_triples", triples)
        if not len(mapped_triples):
            raise ValueError("mapped_triples is empty: there is nothing to rank")
        if arguments["device"] is not None:
            model = model.to(arguments["device"])
        reason = self._not_here(arguments)
        if reason is None:
            try:
                converted = from_pykeen(model)
            except UnknownModelError as error:
                reason = str(error)
        if reason is not None:
            warnings.warn(f"PyKEEN ranks this itself: {reason}", stacklevel=2)
            return cast(RankBasedMetricResults, super().evaluate(*call.args, **call.kwargs))
        disabled = bool((arguments["tqdm_kwargs"] or {}).get("disable"))
        model.eval()  # the mode stays, as after PyKEEN's own evaluate
        ranks = rank(
            converted,
            mapped_triples,
            known=KnownTriples(mapped_triples, *extra).to(model.device) if self.filtered else None,
            sides=cast(tuple[Side, ...], tuple(arguments["targets"])),
            nan=self.nan,
            progress=arguments["use_tqdm"] and not disabled,
        )
        self.clear()
        self.num_entities = model.num_entities
        for column, side in enumerate(ranks.sides):  # finalize() of PyKEEN reads these lists
            for kind in RANK_TYPES:
                values = ranks.ranks(kind)[:, column].numpy()
                self.ranks[side, kind].append(values.astype(_KEPT_AS[kind]))
            self.num_candidates[side].append(ranks.num_candidates[:, column].numpy())
        return self.finalize()

    def _not_here(self, arguments: Mapping[str, Any]) -> str | None:
        """Say why PyKEEN must rank this call for any model; None if kgfast can."""
        if any(arguments[f"restrict_{name}_to"] is not None for name in ("entities", "relations")):
            return "restrict_entities_to and restrict_relations_to"
        if self.mode is not None:
            return f"inductive mode {self.mode!r}"
        if self.requires_positive_mask:
            return "a dense mask of positives"
        if not arguments["targets"] or set(arguments["targets"]) - {"head", "tail"}:
            return f"targets {tuple(arguments['targets'])}"
        return None


def _check_triples(name: str, triples: Any) -> None:
    """Raise unless an argument is a tensor ``[T, 3]`` of ids."""
    if not isinstance(triples, Tensor) or triples.ndim != 2 or triples.shape[1] != 3:
        is_tensor = isinstance(triples, Tensor)
        said = f"shape {list(triples.shape)}" if is_tensor else type(triples).__name__
        raise ValueError(f"{name} must be a tensor [T, 3] of ids; got {said}")
    as_integers(name, triples)


if KgfastEvaluator.get_normalized_name() not in evaluator_resolver.lookup_dict:
    evaluator_resolver.register(KgfastEvaluator)
