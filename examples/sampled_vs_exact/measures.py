"""Metrics of checkpoints by each protocol, kept in files, so that none is measured twice."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

import kgfast
from kgfast import DistMult, Ranks
from kgfast.datasets import Dataset
from kgfast.models import Model
from kgfast.training import LoadedRun, RunFolder, Vocabularies, model_of
from kgfast.whole_files import write_whole

from .counting import Bits, Counts, Draw, bits_of
from .negatives import SIDES, drawn

COUNTS = (500, 1000)  # negatives a side; the first ones of a draw are the shorter list
METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
ALL, TYPED = "exact", "exact, typed"
TYPE_FILES = ("entity2types.json", "entity_types.tsv")

RankType = Literal["optimistic", "realistic", "pessimistic"]
RANK_TYPES: tuple[RankType, ...] = ("realistic", "optimistic", "pessimistic")
Models = Mapping[str, Callable[[], Model]]  # "<run>/<step>", and functions that read them
Metrics = dict[str, Any]
Measured = dict[str, Metrics]  # each model's metrics by protocol


def sampled_name(kind: str, count: int) -> str:
    """Name a sampled protocol: ``500 uniform``."""
    return f"{count:,} {kind}"


def model_at(path: Path) -> Model:
    """Read a ``model_<n>.safetensors`` of a run, in eval mode."""
    run = RunFolder(path.parent)
    graph = run.load_graph()
    return model_of(run, run.read_config(), run.load(path)[0], (graph.entities, graph.relations))


class Study:
    """The test triples of a graph, and the protocols that rank them.

    Parameters
    ----------
    dataset : Dataset
        The graph, with the ids of the runs.
    source : Path
        The folder of the graph. A file of TYPE_FILES in it names the types of entities. Without
        one, the type-correct candidates of a relation are the entities that train has on its side.
    folder : Path
        The folder of the runs, in which their metrics are kept.
    counts : sequence of int
        Negatives a side, ascending.

    Attributes
    ----------
    constant : Model
        A model whose scores are all equal.
    """

    def __init__(
        self, dataset: Dataset, source: Path, folder: Path, counts: Sequence[int] = COUNTS
    ) -> None:
        self.folder, self.counts = folder, tuple(counts)
        self._bits: dict[str, Bits | None] = {}
        self.hrt, self.known = dataset.test.hrt, dataset.known()
        self.num_entities = dataset.num_entities
        sizes = dataset.num_entities, dataset.num_relations
        self.constant = DistMult(*(torch.zeros(size, 1, dtype=torch.float32) for size in sizes))
        names = Vocabularies(dataset.entities, dataset.relations)
        types = next((source / it for it in TYPE_FILES if (source / it).is_file()), None)
        self.types = "train" if types is None else types.name
        run = LoadedRun(self.constant, names, dataset, None)
        self.allowed = run.type_constraints(types or "train")

    def exact(self, models: Models) -> Measured:
        """Return filtered metrics among all entities and among type-correct ones, by rank type."""
        return self._kept("exact", models, lambda: self._exact)

    def sampled(
        self, models: Models, kind: str, draw: int, ranked: Collection[str] = ()
    ) -> Measured:
        """Return metrics among the negatives of a draw, by each number of negatives.

        Models named in ``ranked`` are ranked, and timed; others are counted from bits, where they
        have them.

        Raises
        ------
        ArithmeticError
            If the counts from bits are not those of the ranking.
        """
        return self._kept(f"{kind}-{draw:02d}", models, lambda: self._sampler(kind, draw, ranked))

    def _kept(
        self, name: str, models: Models, prepare: Callable[[], Callable[[str, Model], Metrics]]
    ) -> Measured:
        """Read the metrics of models from files; measure and store missing ones."""
        found = {key: self._stored(name, key) for key in models}
        missing = [key for key, metrics in found.items() if metrics is None]
        if missing:
            measure = prepare()
            for key in missing:
                found[key] = self._store(name, key, measure(key, models[key]()))
        return {key: metrics for key, metrics in found.items() if metrics is not None}

    def _stored(self, name: str, key: str) -> Metrics | None:
        """Read a model's stored metrics of a protocol; None if they are missing."""
        path, step = self._place(name, key)
        return json.loads(path.read_text()).get(step) if path.is_file() else None

    def _store(self, name: str, key: str, metrics: Metrics) -> Metrics:
        path, step = self._place(name, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(path.read_text()) if path.is_file() else {}
        text = json.dumps({**earlier, step: metrics}, indent=1) + "\n"
        write_whole(path, lambda beside: beside.write_text(text))
        return metrics

    def _place(self, name: str, key: str) -> tuple[Path, str]:
        """Return the file of a protocol, inside the folder of the run, and the step."""
        model, _, step = key.rpartition("/")
        counts = "-".join(map(str, self.counts))
        return self.folder / model / f"measures-{counts}" / f"{name}.json", step

    def _exact(self, key: str, model: Model) -> Metrics:
        found: Metrics = {}
        for name, ids in ((ALL, None), (TYPED, self.allowed)):
            start = time.process_time()
            ranks = kgfast.rank(model, self.hrt, known=self.known, candidate_ids=ids)
            seconds = time.process_time() - start
            by_type = {it: _chosen(ranks.metrics(it)) for it in RANK_TYPES}
            found[name] = {"cpu_seconds": seconds, **by_type}
        return found

    def _sampler(
        self, kind: str, draw: int, ranked: Collection[str]
    ) -> Callable[[str, Model], Metrics]:
        """Draw negatives for all models, and return the function that ranks among them."""
        start = time.process_time()
        allowed = self.allowed if kind == "typed" else None
        most = self.counts[-1]
        ids = drawn(self.hrt, self.known, self.num_entities, most, draw, allowed)
        about = {"drawing_cpu_seconds": time.process_time() - start}
        negatives = Draw(ids, self.num_entities, self.counts)
        return partial(self._sampled, kind, negatives, about, ranked)

    def _sampled(
        self,
        kind: str,
        draw: Draw,
        about: Metrics,
        ranked: Collection[str],
        key: str,
        model: Model,
    ) -> Metrics:
        """Count among the first negatives of a draw, then add those that come after them."""
        bits = None if model is self.constant else self._bits_of(key, model)
        is_ranked = key in ranked
        found: Metrics = {}
        greater, equal = (torch.zeros_like(self.hrt[:, ::2]) for _ in range(2))
        first, seconds = 0, 0.0
        for count in self.counts:
            start = time.process_time()
            if bits is None or is_ranked:
                part = draw.ranked(model, self.hrt, first, count)
            else:
                part = draw.counted(bits, first, count)
            seconds += time.process_time() - start
            if bits is not None and is_ranked:
                _check_same(key, part, draw.counted(bits, first, count))
            greater, equal = greater + part[0], equal + part[1]
            ranks = Ranks(greater, equal, draw.sizes[count], SIDES, self.hrt)
            timed = {"cpu_seconds": seconds} if bits is None or is_ranked else {}
            found[sampled_name(kind, count)] = {
                **timed,
                **about,
                "candidates": float(draw.sizes[count].double().mean()),
                **{it: _chosen(ranks.metrics(it)) for it in RANK_TYPES},
            }
            first = count
        return found

    def _bits_of(self, key: str, model: Model) -> Bits | None:
        if key not in self._bits:
            self._bits[key] = bits_of(model, self.hrt, kgfast.rank(model, self.hrt, known=None))
        return self._bits[key]


def _check_same(key: str, ranked: Counts, counted: Counts) -> None:
    if not all(map(torch.equal, ranked, counted)):
        raise ArithmeticError(f"{key}: counts from bits are not those of the ranking")


def _chosen(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in METRICS}
