"""PyKEEN's models and evaluators (Ali et al. 2021; pykeen 1.11): ``evaluator="kgfast"``.

Importing this file registers :class:`KgfastEvaluator` with PyKEEN's resolver. So pipelines, early
stopping and hyper-parameter searches find the evaluator by name.
"""

import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from pykeen.constants import TARGET_TO_KEYS
from pykeen.evaluation import (
    MacroRankBasedEvaluator,
    RankBasedEvaluator,
    RankBasedMetricResults,
    evaluator_resolver,
)
from torch import Tensor

from kgfast.adapters.pykeen_models import UnknownModelError, from_pykeen
from kgfast.eval import RANK_TYPES, Ranks, rank
from kgfast.graph import KnownTriples, as_integers
from kgfast.models import Side

__all__ = ["KgfastEvaluator", "KgfastMacroEvaluator", "UnknownModelError", "from_pykeen"]

_KEPT = 4  # filters in the cache: of valid and of test, for two data sets
# Dtypes of ranks in PyKEEN, so that metrics agree in their last digits.
_KEPT_AS = {"optimistic": np.int64, "realistic": np.float32, "pessimistic": np.int64}


class _Ranked(RankBasedEvaluator):
    """Evaluator whose ``evaluate`` counts the ranks, which PyKEEN then summarises."""

    def __init__(self, *, nan: Literal["error", "worst"] = "error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nan = nan
        self._filters: dict[tuple[Any, ...], tuple[list[Any], KnownTriples]] = {}
        self._said: set[str] = set()

    def evaluate(
        self,
        model: Any,
        mapped_triples: Tensor,
        batch_size: int | None = None,
        slice_size: int | None = None,
        device: torch.device | None = None,
        use_tqdm: bool = True,
        tqdm_kwargs: Mapping[str, Any] | None = None,
        restrict_entities_to: Collection[int] | None = None,
        restrict_relations_to: Collection[int] | None = None,
        do_time_consuming_checks: bool = True,
        additional_filter_triples: Tensor | list[Tensor] | None = None,
        pre_filtered_triples: bool = True,
        targets: Collection[Side] = ("head", "tail"),
    ) -> RankBasedMetricResults:
        """Evaluate like PyKEEN's class; batch and slice sizes are not needed.

        PyKEEN ranks itself, and a warning says so once, for unknown models, a restriction of
        entities or relations, inductive modes, and relations as targets.
        """
        _check_triples("mapped_triples", mapped_triples)
        extra = additional_filter_triples
        for part in extra if isinstance(extra, list | tuple) else () if extra is None else [extra]:
            _check_triples("additional_filter_triples", part)
        if not len(mapped_triples):
            raise ValueError("mapped_triples is empty: there is nothing to rank")
        restricted = restrict_entities_to is not None or restrict_relations_to is not None
        if device is not None:
            model = model.to(device)
        ranked = self._not_here(restricted, targets) or self._converted(model)
        if isinstance(ranked, str):
            self._say(ranked)
            result = super().evaluate(
                model=model,
                mapped_triples=mapped_triples,
                batch_size=batch_size,
                slice_size=slice_size,
                device=device,
                use_tqdm=use_tqdm,
                tqdm_kwargs=tqdm_kwargs,
                restrict_entities_to=restrict_entities_to,
                restrict_relations_to=restrict_relations_to,
                do_time_consuming_checks=do_time_consuming_checks,
                additional_filter_triples=additional_filter_triples,
                pre_filtered_triples=pre_filtered_triples,
                targets=targets,
            )
            return cast(RankBasedMetricResults, result)
        disabled = bool((tqdm_kwargs or {}).get("disable"))
        model.eval()  # the mode stays, as after PyKEEN's own evaluate
        ranks = rank(
            ranked,
            mapped_triples,
            known=self._known(mapped_triples, additional_filter_triples, model.device),
            sides=cast(tuple[Side, ...], tuple(targets)),
            nan=self.nan,
            progress=use_tqdm and not disabled,
        )
        self.clear()
        self._keep(ranks, model.num_entities)
        return self.finalize()

    def _not_here(self, restricted: bool, targets: Collection[Side]) -> str | None:
        """Say why PyKEEN must rank this call for any model; None if kgfast can."""
        if restricted:
            return "restrict_entities_to and restrict_relations_to"
        if self.mode is not None:
            return f"inductive mode {self.mode!r}"
        if self.requires_positive_mask:
            return "a dense mask of positives"
        if not targets or set(targets) - {"head", "tail"}:
            return f"targets {tuple(targets)}"
        return None

    def _converted(self, model: Any) -> Any:
        """Return the model for kgfast, or the reason why there is none."""
        try:
            return from_pykeen(model)
        except UnknownModelError as error:
            return str(error)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"PyKEEN ranks this itself: {reason}", stacklevel=3)

    def _known(
        self, triples: Tensor, additional: Tensor | Sequence[Tensor] | None, device: torch.device
    ) -> KnownTriples | None:
        """Return the filter; a cached filter if the tensors were not written to since."""
        if not self.filtered:
            return None
        extra = [additional] if isinstance(additional, Tensor) else list(additional or ())
        parts = [triples, *extra]
        key = (str(device), *((id(part), _version(part)) for part in parts))
        held = self._filters.get(key)
        if held is not None and all(
            ref() is part for ref, part in zip(held[0], parts, strict=True)
        ):
            return held[1]
        known = KnownTriples(*parts).to(device)
        self._filters[key] = [weakref.ref(part) for part in parts], known
        while len(self._filters) > _KEPT:
            del self._filters[next(iter(self._filters))]
        return known

    def _keep(self, ranks: Ranks, num_entities: int) -> None:
        """Put ranks where PyKEEN's ``finalize`` expects ranks."""
        self.num_entities = num_entities
        for column, side in enumerate(ranks.sides):
            for kind in RANK_TYPES:
                values = ranks.ranks(kind)[:, column].numpy()
                self.ranks[side, kind].append(values.astype(_KEPT_AS[kind]))
            self.num_candidates[side].append(ranks.num_candidates[:, column].numpy())


class KgfastEvaluator(_Ranked):
    """PyKEEN's ``RankBasedEvaluator`` with ranks that kgfast counts.

    All options, metrics, rank types and confidence intervals are those of PyKEEN's class.

    Parameters
    ----------
    nan : {"error", "worst"}
        Treatment of a NaN or an infinity in the embeddings. (PyKEEN gives a NaN the rank 0.5.)
    **kwargs
        Arguments of ``pykeen.evaluation.RankBasedEvaluator``.
    """


class KgfastMacroEvaluator(_Ranked, MacroRankBasedEvaluator):
    """PyKEEN's ``MacroRankBasedEvaluator`` with kgfast's ranks: ``evaluator="kgfastmacro"``."""

    def _keep(self, ranks: Ranks, num_entities: int) -> None:
        super()._keep(ranks, num_entities)
        for side in ranks.sides:
            self.keys[side].append(ranks.triples[:, TARGET_TO_KEYS[side]].numpy())


def _check_triples(name: str, triples: Any) -> None:
    """Raise unless an argument is a tensor ``[T, 3]`` of ids."""
    if not isinstance(triples, Tensor) or triples.ndim != 2 or triples.shape[1] != 3:
        is_tensor = isinstance(triples, Tensor)
        said = f"shape {list(triples.shape)}" if is_tensor else type(triples).__name__
        raise ValueError(f"{name} must be a tensor [T, 3] of ids; got {said}")
    as_integers(name, triples)


def _version(tensor: Tensor) -> int:
    """Return the number of writes to a tensor; tensors of inference mode count none."""
    return -1 if tensor.is_inference() else tensor._version


for _evaluator in (KgfastEvaluator, KgfastMacroEvaluator):
    if _evaluator.get_normalized_name() not in evaluator_resolver.lookup_dict:
        evaluator_resolver.register(_evaluator)
