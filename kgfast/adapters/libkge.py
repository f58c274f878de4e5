"""LibKGE's entity ranking with kgfast's counts, as a job that a config names.

    modules: [kge.job, kge.model, kge.model.embedder, kgfast.adapters.libkge]
    entity_ranking.class_name: KgfastEntityRankingJob

This file imports LibKGE (github.com/uma-pi1/kge). :mod:`kgfast.adapters.libkge_checkpoints` reads
checkpoints without LibKGE.
"""

import time
from collections.abc import Callable, Iterator
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


class KgfastEntityRankingJob(EntityRankingJob):  # type: ignore[misc]
    """``EntityRankingJob`` with kgfast's ranks, and LibKGE's options, traces, hooks and metrics.

    Ties are equal scores. In LibKGE, ties are scores within ``entity_ranking.tie_handling.atol``
    and ``rtol`` of the target's score; ``user.kgfast_ties: fuzzy`` counts these, more slowly. A NaN
    is the worst score.
    """

    def __init__(self, config: Any, dataset: Any, parent_job: Any, model: Any) -> None:
        super().__init__(config, dataset, parent_job, model)
        self.ties = config.get_default(_TIES) if _has(config, _TIES) else "exact"
        if self.ties not in ("exact", "fuzzy"):
            raise ValueError(f"{_TIES} must be exact or fuzzy; got {self.ties!r}")
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
        self.loader = torch.utils.data.DataLoader(
            self.triples, batch_size=self.batch_size, shuffle=False, collate_fn=torch.stack
        )

    @torch.no_grad()
    def _evaluate(self) -> None:
        self.current_trace["epoch"] = {**self._facts("epoch"), "size": len(self.triples)}
        for hook in self.pre_epoch_hooks:
            hook(self)
        began = time.time()
        ranks = self._ranks()
        hists: dict[str, dict[str, Tensor]] = {ranking: {} for ranking in ranks}
        for number, (rows, batch) in enumerate(self._batches()):
            of_batch = {
                name: ranks[name][rows].to(self.device) for name in ranks
            }  # [B, 2], heads first
            self._evaluate_batch(number, batch, of_batch, hists)
        metrics: dict[str, float] = {}
        for ranking, suffix in _SUFFIXES.items():
            for key, hist in hists.get(ranking, {}).items():
                name = suffix + ("" if key == "all" else f"_{key}")
                metrics |= self._compute_metrics(hist, suffix=name)
        self.current_trace["epoch"].update(
            {"epoch_time": time.time() - began, "event": "eval_completed", **metrics}
        )

    def _facts(self, scope: str) -> dict[str, Any]:
        return {
            "type": "entity_ranking",
            "scope": scope,
            "split": self.eval_split,
            "filter_splits": self.filter_splits,
            "epoch": self.epoch,
            "batches": len(self.loader),
        }

    def _batches(self) -> Iterator[tuple[slice, Tensor]]:
        first = 0
        for batch in self.loader:
            rows = slice(first, first + len(batch))
            first = rows.stop
            yield rows, batch.to(self.device)

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

    def _evaluate_batch(
        self,
        number: int,
        batch: Tensor,
        ranks: dict[str, Tensor],
        hists: dict[str, dict[str, Tensor]],
    ) -> None:
        size = {"batch": number, "size": len(batch)}
        self.current_trace["batch"] = self._facts("batch") | size
        for hook in self.pre_batch_hooks:
            hook(self)
        metrics: dict[str, float] = {}
        for name in ranks:
            of_batch: dict[str, Tensor] = {}
            heads, tails = ranks[name].unbind(1)
            for hook in self.hist_hooks:
                hook(of_batch, *batch.unbind(1), heads, tails, job=self)
            metrics |= self._compute_metrics(of_batch["all"], suffix=_SUFFIXES[name])
            for key, hist in of_batch.items():
                hists[name][key] = hists[name][key] + hist if key in hists[name] else hist
        if self.trace_examples:
            self._trace_examples(batch, ranks)
        self.current_trace["batch"].update(metrics)
        for hook in self.post_batch_hooks:
            hook(self)
        if self.trace_batch:
            self.trace(**self.current_trace["batch"])
        self.current_trace["batch"] = None

    def _trace_examples(self, batch: Tensor, ranks: dict[str, Tensor]) -> None:
        """Trace the ranks of each triple, counted from 1."""
        entry = self._facts("example") | {"size": len(batch)}
        named = {_IN_TRACES[name]: (ranks[name] + 1).tolist() for name in ranks}
        for row, triple in enumerate(batch.tolist()):
            entry |= {"batch": row, **dict(zip("spo", triple, strict=True))}
            for task, column in (("sp", 1), ("po", 0)):
                own = {name: values[row][column] for name, values in named.items()}
                self.trace(event="example_rank", task=task, **own, **entry)


_SUFFIXES = {"_raw": "", "_filt": "_filtered", "_filt_test": "_filtered_with_test"}
_IN_TRACES = {
    "_raw": "rank",
    "_filt": "rank_filtered",
    "_filt_test": "rank_filtered_with_test",
}


def _has(config: Any, key: str) -> bool:
    return cast(Callable[[str], bool], config.exists)(key)
