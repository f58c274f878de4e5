"""Stand-in for the part of LibKGE that its evaluation job rests on."""

import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

ADAPTERS = ("kgfast.adapters.libkge",)  # modules that import LibKGE


class Config(dict[str, Any]):
    """Options by their full names."""

    def exists(self, key: str) -> bool:
        return key in self

    def get_default(self, key: str) -> Any:
        return self[key]


class Job:
    job_created_hooks: ClassVar[list[Callable[[Any], None]]] = []


class EvaluationJob(Job):
    def __init__(self, config: Config, dataset: Any, parent_job: Any, model: Any) -> None:
        self.config, self.dataset, self.model, self.epoch = config, dataset, model, -1
        self.batch_size, self.device = config["eval.batch_size"], "cpu"
        self.trace_examples = config.get("eval.trace_level") == "example"
        self.trace_batch, self.eval_split = self.trace_examples, config["eval.split"]
        self.current_trace: dict[str, Any] = {"epoch": None, "batch": None}
        self.pre_epoch_hooks: list[Any] = []

    def _prepare(self) -> None:
        self.is_prepared = True

    def run(self) -> None:
        self._prepare()
        self._evaluate()
        self.trace(**self.current_trace["epoch"])


class EntityRankingJob(EvaluationJob):
    def __init__(self, config: Config, dataset: Any, parent_job: Any, model: Any) -> None:
        super().__init__(config, dataset, parent_job, model)
        ties = "entity_ranking.tie_handling."
        self.tie_handling = config.get(ties + "type", "rounded_mean_rank")
        self.tie_atol = float(config.get(ties + "atol", 1e-5))
        self.tie_rtol = float(config.get(ties + "rtol", 1e-4))
        self.filter_with_test, self.filter_splits = True, ["train", "valid"]
        self.hits_at_k_s = config["entity_ranking.hits_at_k_s"]
        self.hist_hooks = [_histograms]

    def _get_ranks(self, rank: Tensor, num_ties: Tensor) -> Tensor:
        return {
            "rounded_mean_rank": rank + num_ties // 2,
            "best_rank": rank,
            "worst_rank": rank + num_ties - 1,
        }[self.tie_handling]

    def _compute_metrics(self, hist: Tensor, suffix: str = "") -> dict[str, float]:
        ranks, count = torch.arange(1, len(hist) + 1), hist.sum()
        hits = {f"hits_at_{k}{suffix}": float(hist[:k].sum() / count) for k in self.hits_at_k_s}
        return hits | {
            f"mean_rank{suffix}": float((hist * ranks).sum() / count),
            f"mean_reciprocal_rank{suffix}": float((hist / ranks).sum() / count),
        }


def _histograms(
    hists: dict[str, Tensor], s: Any, p: Any, o: Any, heads: Tensor, tails: Tensor, *, job: Any
) -> None:
    size = job.dataset.num_entities()
    of_sides = [torch.bincount(ranks, minlength=size).double() for ranks in (heads, tails)]
    hists.update(all=sum(of_sides), head=of_sides[0], tail=of_sides[1])


def modules() -> Mapping[str, types.ModuleType]:
    kge, job, model = (types.ModuleType(name) for name in ("kge", "kge.job", "kge.model"))
    job.__dict__.update(Job=Job, EvaluationJob=EvaluationJob, EntityRankingJob=EntityRankingJob)
    model.__dict__.update(
        KgeModel=type("KgeModel", (torch.nn.Module,), {}),
        ReciprocalRelationsModel=type("ReciprocalRelationsModel", (torch.nn.Module,), {}),
    )
    return {"kge": kge, "kge.job": job, "kge.model": model}


TIES = {"exact": {"atol": "0.0", "rtol": "0.0"}, "fuzzy": {}, "a wide band": {"rtol": "0.1"}}
_OF_THE_RUN = (
    *("timestamp", "entry_id", "epoch_time", "job_id", "folder", "echo", "log"),
    "batches",
)


def job_options(ties: str) -> dict[str, Any]:
    """Make the options of a job: histograms, small batches."""
    return {
        "eval.split": "valid",
        "eval.batch_size": 7,
        "entity_ranking.hits_at_k_s": [1, 3, 10],
        "entity_ranking.metrics_per.head_and_tail": True,
        "entity_ranking.metrics_per.relation_type": False,
        "entity_ranking.metrics_per.argument_frequency": False,
        **{f"entity_ranking.tie_handling.{key}": value for key, value in TIES[ties].items()},
        **({} if ties == "exact" else {"user.kgfast_ties": "fuzzy"}),
    }


def noted(job: Any) -> list[dict[str, Any]]:
    """Return the list into which a job will trace."""
    entries: list[dict[str, Any]] = []

    def keep(**entry: Any) -> dict[str, Any]:
        entries.append({key: entry[key] for key in entry if key not in _OF_THE_RUN})
        return entry

    job.trace = keep
    return entries
