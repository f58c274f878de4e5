"""Self-contained HTML page about a run.

Everything is escaped. A policy in the head of the page allows the single script by hash, and no
network address.
"""

import base64
import hashlib
import heapq
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.functional import pad

from kgfast import __version__
from kgfast.datasets import Dataset
from kgfast.eval import GroupedRanks, Interval, Ranks, topk
from kgfast.extras.report import figures
from kgfast.frames import needed
from kgfast.graph import KnownTriples, Triples, Vocabulary
from kgfast.text import escaped
from kgfast.time_limit import TimeLimit
from kgfast.training import LoadedRun, RunFolder, load_run
from kgfast.whole_files import write_whole

RELATIONS = 500  # rows of the table of relations
EXAMPLES = 10
_INSTEAD = 3  # answers that the model prefers to a badly ranked one
_FIRST_PART = 64  # triples that are ranked under any limit of time


def write_report(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    split: Literal["test", "valid"] = "test",
    hits: Sequence[int] = (1, 3, 10),
    minutes: float | None = None,
    data: str | os.PathLike[str] | Dataset | None = None,
    checkpoint: Literal["best", "last"] = "best",
    device: torch.device | str | None = "cpu",
    overrides: Sequence[str] | None = None,
    samples: int = 1000,
    trust: bool = False,
) -> Path:
    """Rank a split with a trained model and write a report of one page.

    The page shows curves of training, metrics with intervals, breakdowns by relation, cardinality
    and frequency, a histogram of ranks, and the worst and the best predictions with labels. The
    page needs no other file and no network.

    Parameters
    ----------
    run
        The folder of the run, or of a model that :func:`kgfast.save` saved (with ``data``).
    out
        Path of the page; ``<run>/report.html`` by default.
    split : {"test", "valid"}
        The split to rank.
    hits : sequence of int
        The k of each ``hits@k``.
    minutes : float, optional
        Limit of ranking: a random part of the split is ranked. Equal numbers of triples are equal
        parts. The page shows the number of ranked triples and the size of the split.
    data, checkpoint, device, overrides, trust
        See :func:`kgfast.load_run`.
    samples : int
        Samples of the bootstrap that makes the intervals.

    Returns
    -------
    Path
        Path of the page.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder is not that of a run, or data are not found: see :func:`kgfast.load_run`. If
        the split is empty, or ``minutes`` are not above 0.
    ImportError
        If matplotlib or jinja2 is not installed.
    """
    jinja2 = needed("jinja2", "kgfast report")
    needed("matplotlib", "kgfast report")
    limit = TimeLimit(minutes)
    folder = RunFolder(run)
    loaded = load_run(
        run, data, checkpoint=checkpoint, device=device, overrides=overrides, trust=trust
    )
    results = loaded.ranks(split) if minutes is None else _ranks_in_time(loaded, split, limit)
    dim, ranks = (None, results) if isinstance(results, Ranks) else max(results.items())
    widths = {} if isinstance(results, Ranks) else results
    if not len(ranks):
        raise ValueError(f"{folder.path}: the {split} split holds no triples to report on")
    assert loaded.dataset is not None
    names = loaded.vocabulary or (None, None)
    worst, best = examples(loaded.model, ranks, loaded.dataset.known(), names, EXAMPLES, dim)
    sides: dict[str, Ranks] = {side: ranks.side(side) for side in ranks.sides}
    sides["both" if len(sides) > 1 else ranks.sides[0]] = ranks
    intervals = {side: part.intervals(samples=samples, hits=hits) for side, part in sides.items()}
    try:
        result = folder.read_result()
    except FileNotFoundError:  # the run is not finished
        result = {}
    config = folder.config if loaded.config is not None else folder.path / "config.json"
    script = _resource("sort.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_without_controls
    )
    environment.filters["breakable"] = lambda text: _breakable(jinja2.filters.escape(escaped(text)))
    page: str = environment.from_string(_resource("page.html.jinja")).render(
        title=folder.path.resolve().name,
        loaded=loaded,
        ranks=ranks,
        split=split,
        checkpoint=checkpoint,
        result=result,
        training_time=timedelta(seconds=round(result.get("seconds_training") or 0)),
        version=__version__,
        metrics=["mrr", "mr", "median_rank", *(f"hits@{k}" for k in hits), "amri"],
        cards=[
            (name, list(intervals.values())[-1][name])
            for name in ("mrr", *dict.fromkeys((f"hits@{hits[0]}", f"hits@{hits[-1]}")), "amri")
        ],
        intervals=intervals,
        worst=worst,
        best=best,
        tied=float((ranks.width > 0).double().mean()),
        curves="" if loaded.config is None else figures.curves(folder.path),
        histogram=figures.rank_histogram(ranks),
        widths=[(width, it.metrics(hits=hits)) for width, it in widths.items()],
        config=config.read_text(encoding="utf-8"),
        config_name=config.name,
        samples=samples,
        style=_resource("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **_groups(ranks, names[1], samples, hits),
    )
    path = folder.path / "report.html" if out is None else Path(out)
    return write_whole(path, lambda beside: beside.write_text(page, encoding="utf-8"))


def _ranks_in_time(loaded: LoadedRun, split: str, limit: TimeLimit) -> Ranks | dict[int, Ranks]:
    dataset = loaded.dataset
    if dataset is None:
        return loaded.ranks(split)  # raises an error that names the data
    triples, known = dataset.split(split), dataset.known()
    draw = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(triples), generator=draw, dtype=torch.int64, device="cpu")
    parts: list[Any] = []
    done, size = 0, _FIRST_PART
    while not parts or (done < len(triples) and size > 0):
        some: dict[str, Any] = {split: triples[shuffled[done : done + size]]}
        found = replace(loaded, dataset=replace(dataset, **some)).ranks(split, known=known)
        parts.append({None: found} if isinstance(found, Ranks) else found)
        done += size
        size = int(size * min(2.0, limit.parts_left()))
    order, joined = shuffled[:done].argsort(), dict[Any, Ranks]()
    for dim, first in parts[0].items():
        rows, greater, equal, candidates = (
            torch.cat([getattr(part[dim], name) for part in parts])[order.to(first.greater.device)]
            for name in ("triples", "greater", "equal", "num_candidates")
        )
        hrt = Triples(rows, entities=triples.entities, relations=triples.relations)
        joined[dim] = Ranks(greater, equal, candidates, first.sides, hrt, known=known)
    return joined.get(None, joined)


def _groups(
    ranks: Ranks, names: Vocabulary | None, samples: int, hits: Sequence[int]
) -> dict[str, Any]:
    cardinality, frequency = ranks.by("cardinality"), ranks.by("frequency")
    relations = ranks.by("relation")
    shown = sorted(relations, key=lambda name: -len(relations[name]))[:RELATIONS]
    titles = {name: name if names is None else names.text(names[str(name)]) for name in shown}
    largest = GroupedRanks("relation", {titles[it]: relations[it] for it in shown})

    def mrr(ranks: Ranks) -> Interval:
        return ranks.intervals(samples=samples)["mrr"]

    return {
        "cardinalities": figures.mrr_of_groups(
            "cardinality",
            "MRR by cardinality of the relation",
            {
                name: {str(side): mrr(part.side(side)) for side in part.sides}
                for name, part in cardinality.items()
            },
        ),
        "frequencies": figures.mrr_of_groups(
            "frequency",
            "MRR by frequency of the target",
            {name: {"target": mrr(part)} for name, part in frequency.items()},
        ),
        "macro": relations.macro(hits=hits),
        "breakdowns": [
            ("Cardinality of the relation", cardinality.metrics(hits=hits), 0),
            ("Known triples of the target", frequency.metrics(hits=hits), 0),
            ("Relation", largest.metrics(hits=hits), len(relations) - len(shown)),
        ],
    }


def examples(
    model: Any,
    ranks: Ranks,
    known: KnownTriples,
    names: Sequence[Vocabulary | None],
    count: int,
    dims: int | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the ``count`` worst predictions, with answers that the model prefers, and the best.

    Among equal ranks, the worst begin with the most frequent targets and the best with the rarest,
    since these surprise most.
    """
    targets = ranks.triples[:, [2 if side == "tail" else 0 for side in ranks.sides]].cpu()
    counts = known.entity_frequency().cpu()
    frequency = pad(counts, (0, int(targets.max()) + 1))[targets].flatten().tolist()
    rank = ranks.realistic.flatten().tolist()

    def entity(id: int) -> str:
        return str(id) if names[0] is None else names[0].text(id)

    def example(cell: int) -> dict[str, Any]:
        row, column = divmod(cell, len(ranks.sides))
        head, relation, tail = ranks.triples[row].tolist()
        return {
            "ids": (head, relation, tail),
            "head": entity(head),
            "relation": str(relation) if names[1] is None else names[1].text(relation),
            "tail": entity(tail),
            "side": ranks.sides[column],
            "rank": rank[cell],
            "candidates": int(ranks.num_candidates[row, column]),
            "frequency": frequency[cell],
        }

    cells = range(len(rank))
    bad = heapq.nsmallest(count, cells, lambda cell: (-rank[cell], -frequency[cell]))
    worst = [example(cell) for cell in bad if rank[cell] > 1]  # if all are first, none is bad
    for it in worst:
        head, relation, tail = it["ids"]
        anchor: Any = {"heads": head} if it["side"] == "tail" else {"tails": tail}
        options: Any = {"k": _INSTEAD, "known": known, "dims": dims, "pad": True}
        ids = topk(model, **anchor, relations=relation, **options).ids[0].tolist()
        it["instead"] = [entity(id) for id in ids if id >= 0]
    good = heapq.nsmallest(count, cells, lambda cell: (rank[cell], frequency[cell]))
    return worst, [example(cell) for cell in good]


def _without_controls(value: Any) -> Any:
    """Escape control characters of text; Markup is escaped already."""
    return escaped(value) if type(value) is str else value


def _breakable(markup: Any) -> Any:
    """Allow lines to break after the signs that join the words of a name."""
    return type(markup)(re.sub(r"(?<=[^\W_]{2})([_/.]+)(?=\w\w)", r"\1<wbr>", str(markup)))


def _resource(name: str) -> str:
    return files("kgfast.extras.report").joinpath(name).read_text(encoding="utf-8")
