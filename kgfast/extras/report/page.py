"""Self-contained HTML page about a run.

Everything is escaped. A policy in the head of the page allows the single script by hash, and no
network address.
"""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch

from kgfast import __version__
from kgfast.datasets import Dataset
from kgfast.eval import GroupedRanks, Interval, Ranks
from kgfast.extras.report import figures
from kgfast.extras.report.examples import examples
from kgfast.frames import needed
from kgfast.graph import Triples
from kgfast.text import escaped
from kgfast.time_limit import TimeLimit
from kgfast.training import LoadedRun, RunFolder, load_run
from kgfast.whole_files import write_whole

RELATIONS = 500  # rows of the table of relations
EXAMPLES = 10
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
    parts = _figures(loaded, folder.path, ranks, samples, hits) | _examples(loaded, ranks, dim)
    config = folder.config if loaded.config is not None else folder.path / "config.json"
    script = _resource("sort.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_without_controls
    )
    environment.filters["breakable"] = lambda text: _breakable(jinja2.filters.escape(escaped(text)))
    page: str = environment.from_string(_resource("page.html.jinja")).render(
        title=folder.path.resolve().name,
        facts=_facts(folder, loaded, ranks, split, checkpoint),
        metrics=["mrr", "mr", "median_rank", *(f"hits@{k}" for k in hits), "amri"],
        cards=[
            (name, parts["intervals"][ranks_name(ranks)][name])
            for name in ("mrr", *dict.fromkeys(f"hits@{k}" for k in (hits[0], hits[-1])), "amri")
        ],
        widths=[(width, it.metrics(hits=hits)) for width, it in widths.items()],
        config=config.read_text(encoding="utf-8"),
        config_name=config.name,
        samples=samples,
        style=_resource("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        show=_number,
        **parts,
    )
    path = folder.path / "report.html" if out is None else Path(out)
    return write_whole(path, lambda beside: beside.write_text(page, encoding="utf-8"))


def _ranks_in_time(loaded: LoadedRun, split: str, limit: TimeLimit) -> Ranks | dict[int, Ranks]:
    """Rank growing parts of a split in random order, as many as time allows."""
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
        parts.append(replace(loaded, dataset=replace(dataset, **some)).ranks(split, known=known))
        done += size
        size = int(size * min(2.0, limit.parts_left()))
    order = shuffled[:done].argsort()

    def joined(of: list[Ranks]) -> Ranks:
        fields = ("triples", "greater", "equal", "num_candidates")
        columns = [torch.cat([getattr(it, name) for it in of]) for name in fields]
        rows, *counts = (it[order.to(it.device)] for it in columns)
        hrt = Triples(rows, entities=triples.entities, relations=triples.relations)
        return Ranks(counts[0], counts[1], counts[2], of[0].sides, hrt, known=known)

    if isinstance(parts[0], Ranks):
        return joined(parts)
    return {dim: joined([part[dim] for part in parts]) for dim in parts[0]}


def ranks_name(ranks: Ranks) -> str:
    """Return the name of the pooled ranks among the names of sides."""
    return "both" if len(ranks.sides) > 1 else ranks.sides[0]


def _figures(
    loaded: LoadedRun, run: Path, ranks: Ranks, samples: int, hits: Sequence[int]
) -> dict[str, Any]:
    """Return figures as SVG, and the numbers of the tables."""
    sides = {side: ranks.side(side) for side in ranks.sides} | {ranks_name(ranks): ranks}
    cardinality, frequency = ranks.by("cardinality"), ranks.by("frequency")
    of_cardinality = {
        name: {str(side): _mrr(part.side(side), samples) for side in part.sides}
        for name, part in cardinality.items()
    }
    of_frequency = {name: {"target": _mrr(part, samples)} for name, part in frequency.items()}
    pictures = {
        "curves": "" if loaded.config is None else figures.curves(run),
        "histogram": figures.rank_histogram(ranks),
        "cardinalities": figures.mrr_of_groups(
            "cardinality", "MRR by cardinality of the relation", of_cardinality
        ),
        "frequencies": figures.mrr_of_groups(
            "frequency", "MRR by frequency of the target", of_frequency
        ),
    }
    relations = ranks.by("relation")
    shown = sorted(relations, key=lambda name: -len(relations[name]))[:RELATIONS]
    names = None if loaded.vocabulary is None else loaded.vocabulary.relations
    titles = {name: name if names is None else names.text(names[str(name)]) for name in shown}
    return {
        **pictures,
        "intervals": {
            side: part.intervals(samples=samples, hits=hits) for side, part in sides.items()
        },
        "macro": relations.macro(hits=hits),
        "tied": float((ranks.width > 0).double().mean()),
        "breakdowns": [
            ("Cardinality of the relation", cardinality.metrics(hits=hits), 0),
            ("Known triples of the target", frequency.metrics(hits=hits), 0),
            (
                "Relation",
                GroupedRanks("relation", {titles[it]: relations[it] for it in shown}).metrics(
                    hits=hits
                ),
                len(relations) - len(shown),
            ),
        ],
    }


def _mrr(ranks: Ranks, samples: int) -> Interval:
    return ranks.intervals(samples=samples)["mrr"]


def _examples(loaded: LoadedRun, ranks: Ranks, dim: int | None) -> dict[str, Any]:
    assert loaded.dataset is not None
    names = loaded.vocabulary or (None, None)
    worst, best = examples(
        loaded.model, ranks, loaded.dataset.known(), (names[0], names[1]), EXAMPLES, dim
    )
    return {"worst": worst, "best": best}


def _facts(
    folder: RunFolder, loaded: LoadedRun, ranks: Ranks, split: str, checkpoint: str
) -> list[tuple[str, str]]:
    """Return the first lines of the page: model, data, checkpoint, training."""
    model, dataset = loaded.model, loaded.dataset
    assert dataset is not None
    try:
        result = folder.read_result()
    except FileNotFoundError:  # the run is not finished
        result = {}
    seconds = result.get("seconds_training")
    steps = f"{result['steps']:,}" if "steps" in result else "still training"
    training = [
        ("Checkpoint", checkpoint + ("" if loaded.step is None else f", step {loaded.step:,}")),
        ("Steps", steps),
        ("Training", str(timedelta(seconds=round(seconds))) if seconds is not None else "-"),
    ]
    of = len(dataset.split(split))
    ranked = f"{of:,}" if len(ranks) == of else f"a random {len(ranks):,} of {of:,}"
    return [
        ("Model", f"{type(model).__name__}, {model.dim} features"),
        ("Dataset", f"{dataset.name}: {model.num_entities:,} entities"),
        ("Ranked", f"{ranked} triples of {split}, filtered, realistic"),
        *(training if loaded.config is not None else []),
        ("kgfast", __version__),
    ]


def _number(metric: str, value: float) -> str:
    if metric == "count":
        return f"{int(value):,}"
    return f"{value:,.1f}" if metric in ("mr", "median_rank") else f"{value:.4f}"


def _without_controls(value: Any) -> Any:
    """Escape control characters of text; Markup is escaped already."""
    return escaped(value) if type(value) is str else value


def _breakable(markup: Any) -> Any:
    """Allow lines to break after the signs that join the words of a name."""
    return type(markup)(re.sub(r"(?<=[^\W_]{2})([_/.]+)(?=\w\w)", r"\1<wbr>", str(markup)))


def _resource(name: str) -> str:
    return files("kgfast.extras.report").joinpath(name).read_text(encoding="utf-8")
