"""LibKGE's entity ranking with kgfast's counts, as a job that a config names.

    modules: [kge.job, kge.model, kge.model.embedder, kgfast.adapters.libkge]
    entity_ranking.class_name: KgfastEntityRankingJob

This file imports LibKGE (github.com/uma-pi1/kge). :mod:`kgfast.adapters.libkge_checkpoints` reads
checkpoints without LibKGE.
"""

import time
from typing import Any, cast

import torch
from torch import Tensor

try:
    from kge.job import EntityRankingJob, EvaluationJob, Job
    from kge.model import KgeModel, ReciprocalRelationsModel
except ModuleNotFoundError as error:
    if error.name not in ("kge", "kge.job"):  # LibKGE is installed, and lacks a module itself
        raise
    raise ModuleNotFoundError(
        "kgfast.adapters.libkge needs LibKGE, which is on no package index: git clone "
        "https://github.com/uma-pi1/kge && pip install -e kge",
        name="kge",
    ) from None

from kgfast.adapters.affine import Parts, frozen_affine
from kgfast.adapters.foreign import block_scorer, check_agreement, converting
from kgfast.adapters.fuzzy import Band, fuzzy_counts
from kgfast.adapters.libkge_checkpoints import load_libkge, model_of_tables
from kgfast.eval import rank
from kgfast.graph import KnownTriples
from kgfast.models import SIDES, Reciprocal, Side

__all__ = ["KgfastEntityRankingJob", "from_libkge", "load_libkge"]

_TIES = "user.kgfast_ties"
Counts = tuple[Tensor, Tensor]  # greater and equal to the target, without the target, int64 [T, 2]

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
    is_wrapped = is_reciprocal and converted is not None
    return Reciprocal(converted, order="appended") if is_wrapped else converted


def _kind(scorer: Any) -> str:
    """Return the class name of a scorer of LibKGE, "" for any other."""
    kind = type(scorer)
    return kind.__name__ if kind.__module__.startswith("kge.model.") else ""


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    if side == "tail":
        return cast(Tensor, model.score_sp(anchors, relations, ids))
    return cast(Tensor, model.score_po(relations, anchors, ids))


class KgfastEntityRankingJob(EntityRankingJob):  # type: ignore[misc]
    """``EntityRankingJob`` with kgfast's ranks, and LibKGE's options and metrics.

    All triples are one batch, without traces and hooks of batches. Ties are equal scores. In
    LibKGE, ties are scores within ``entity_ranking.tie_handling.atol`` and ``rtol`` of the target's
    score; ``user.kgfast_ties: fuzzy`` counts these, more slowly. A NaN is the worst score.
    """

    def __init__(self, config: Any, dataset: Any, parent_job: Any, model: Any) -> None:
        super().__init__(config, dataset, parent_job, model)
        self.ties = config.get_default(_TIES) if config.exists(_TIES) else "exact"
        if self.ties not in ("exact", "fuzzy"):
            raise ValueError(f"{_TIES} must be exact or fuzzy; got {self.ties!r}")
        if self.trace_examples or self.trace_batch:
            raise ValueError(
                "eval.trace_level must be epoch: there are no batches; kgfast.rank of "
                "from_libkge(model) has the rank of each triple"
            )
        if type(self) is KgfastEntityRankingJob:
            for hook in Job.job_created_hooks:
                hook(self)

    def _prepare(self) -> None:
        """Read data and filters; no index of LibKGE is needed."""
        EvaluationJob._prepare(self)
        self.triples = self.dataset.split(self.config.get("eval.split"))
        filters = [self.dataset.split(split) for split in self.filter_splits]
        self._known = {"_filt": KnownTriples(*filters)}
        if "test" not in self.filter_splits and self.filter_with_test:
            self._known["_filt_test"] = KnownTriples(*filters, self.dataset.split("test"))

    @torch.no_grad()
    def _evaluate(self) -> None:
        entry = self.current_trace["epoch"] = {
            "type": "entity_ranking",
            "scope": "epoch",
            "split": self.eval_split,
            "filter_splits": self.filter_splits,
            "epoch": self.epoch,
            "batches": 1,
            "size": len(self.triples),
        }
        for hook in self.pre_epoch_hooks:
            hook(self)
        began = time.time()
        triples, ranks = self.triples.to(self.device), self._ranks()
        for name, suffix in _SUFFIXES.items():
            if name not in ranks:
                continue
            hists: dict[str, Tensor] = {}
            heads, tails = ranks[name].to(self.device).unbind(1)
            for hook in self.hist_hooks:
                hook(hists, *triples.unbind(1), heads, tails, job=self)
            for key, hist in hists.items():
                of_key = suffix + ("" if key == "all" else f"_{key}")
                entry |= self._compute_metrics(hist, suffix=of_key)
        entry |= {"epoch_time": time.time() - began, "event": "eval_completed"}

    def _ranks(self) -> dict[str, Tensor]:
        """Return ranks from 0 by kind of filter, int64 ``[T, 2]``, heads first."""
        model = from_libkge(self.model)
        counts: dict[str, Counts] = {}
        for name, known in self._known.items():
            if self.ties == "fuzzy":
                band = Band(self.tie_atol, self.tie_rtol)
                counts["_raw"], counts[name] = fuzzy_counts(model, self.triples, known, band)
                continue
            ranks = rank(model, self.triples, known=known, sides=SIDES, nan="worst")
            counts["_raw"] = ranks.raw.greater, ranks.raw.equal
            counts[name] = ranks.greater, ranks.equal
        return {name: self._get_ranks(counts[name][0], counts[name][1] + 1) for name in counts}


_SUFFIXES = {"_raw": "", "_filt": "_filtered", "_filt_test": "_filtered_with_test"}
