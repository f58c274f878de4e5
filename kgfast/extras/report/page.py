"""Self-contained HTML page about a run.

Everything is escaped. A policy in the head of the page allows no script and no network address.
"""

import heapq
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.functional import pad

from kgfast import __version__
from kgfast.datasets import Dataset
from kgfast.eval import HITS, GroupedRanks, Ranks, topk
from kgfast.extras.report import figures
from kgfast.frames import needed
from kgfast.graph import KnownTriples, Vocabulary
from kgfast.text import escaped
from kgfast.training import RunFolder, load_run
from kgfast.whole_files import write_whole

RELATIONS = 500  # rows of the table of relations
EXAMPLES = 10
_INSTEAD = 3  # answers that the model prefers to a badly ranked one


def write_report(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    split: Literal["test", "valid"] = "test",
    hits: Sequence[int] = HITS,
    data: str | os.PathLike[str] | Dataset | None = None,
    checkpoint: Literal["best", "last"] = "best",
    device: torch.device | str | None = "cpu",
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
    data, checkpoint, device, trust
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
        the split is empty.
    ImportError
        If matplotlib or jinja2 is not installed.
    """
    jinja2 = needed("jinja2", "kgfast report", '"kgfast[report]"')
    needed("matplotlib", "kgfast report", '"kgfast[report]"')
    folder = RunFolder(run)
    loaded = load_run(run, data, checkpoint=checkpoint, device=device, trust=trust)
    results = loaded.ranks(split)
    dim, ranks = (None, results) if isinstance(results, Ranks) else max(results.items())
    widths = {} if isinstance(results, Ranks) else results
    if not len(ranks):
        raise ValueError(f"{folder.path}: the {split} split holds no triples to report on")
    assert loaded.dataset is not None
    names = loaded.vocabulary or (None, None)
    worst, best = examples(loaded.model, ranks, loaded.dataset.known(), names, EXAMPLES, dim)
    sides: dict[str, Ranks] = {side: ranks.side(side) for side in ranks.sides}
    sides["both" if len(sides) > 1 else ranks.sides[0]] = ranks
    intervals = {side: some.intervals(samples=samples, hits=hits) for side, some in sides.items()}
    try:
        result = folder.read_result()
    except FileNotFoundError:  # the run is not finished
        result = {}
    config = folder.config if loaded.config is not None else folder.path / "config.json"
    loader = jinja2.PackageLoader("kgfast.extras.report", "")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: escaped(value) if type(value) is str else value,  # no Markup
    )
    environment.filters["breakable"] = lambda text: _breakable(jinja2.filters.escape(escaped(text)))
    page: str = environment.get_template("page.html.jinja").render(
        title=folder.path.resolve().name,
        loaded=loaded,
        ranks=ranks,
        split=split,
        checkpoint=checkpoint,
        result=result,
        training_time=timedelta(seconds=round(result.get("seconds_training") or 0)),
        version=__version__,
        metrics=[name for name in next(iter(intervals.values())) if name != "amr"],
        cards=["mrr", *dict.fromkeys((f"hits@{hits[0]}", f"hits@{hits[-1]}")), "amri"],
        intervals=intervals,
        worst=worst,
        best=best,
        tied=float((ranks.equal > 0).double().mean()),
        curves="" if loaded.config is None else figures.curves(folder.path),
        histogram=figures.bars(
            "histogram",
            (7.6, 2.9),
            "Histogram of ranks",
            "% of ranks",
            figures.shares_of_ranks(ranks),
        ),
        widths=[(width, of_crop.metrics(hits=hits)) for width, of_crop in widths.items()],
        config=config.read_text(encoding="utf-8"),
        config_name=config.name,
        samples=samples,
        **_groups(ranks, names[1], samples, hits),
    )
    path = folder.path / "report.html" if out is None else Path(out)
    return write_whole(path, lambda beside: beside.write_text(page, encoding="utf-8"))


def _groups(
    ranks: Ranks, names: Vocabulary | None, samples: int, hits: Sequence[int]
) -> dict[str, Any]:
    cardinality, frequency = ranks.by("cardinality"), ranks.by("frequency")
    relations, names = ranks.by("relation"), names and names.columns[0]
    shown = sorted(relations, key=lambda name: -len(relations[name]))[:RELATIONS]
    titles = {name: name if names is None else names.text(names[str(name)]) for name in shown}
    largest = GroupedRanks("relation", {titles[name]: relations[name] for name in shown})

    def mrr(name: str, title: str, groups: Mapping[Any, Mapping[str, Ranks]]) -> str:
        heights = {
            group: {side: some.intervals(samples=samples)["mrr"] for side, some in of_sides.items()}
            for group, of_sides in groups.items()
        }
        return figures.bars(name, (3.7, 2.9), f"MRR by {title}", "MRR", heights)

    by_side = {
        name: {str(side): group.side(side) for side in group.sides}
        for name, group in cardinality.items()
    }
    by_target = {name: {"target": group} for name, group in frequency.items()}
    return {
        "cardinalities": mrr("cardinality", "cardinality of the relation", by_side),
        "frequencies": mrr("frequency", "frequency of the target", by_target),
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

    def text(id: int, vocabulary: Vocabulary | None) -> str:
        return str(id) if vocabulary is None else vocabulary.text(id)

    def example(cell: int) -> dict[str, Any]:
        row, column = divmod(cell, len(ranks.sides))
        ids = dict(
            zip(("heads", "relations", "tails", "times"), ranks.triples[row].tolist(), strict=False)
        )
        head, relation, tail, *time = ids.values()
        relation = relation if not time else relation * model.num_times + time[0]
        return {
            "ids": ids,
            "head": text(head, names[0]),
            "relation": text(relation, names[1]),
            "tail": text(tail, names[0]),
            "side": ranks.sides[column],
            "rank": rank[cell],
            "candidates": int(ranks.num_candidates[row, column]),
            "frequency": frequency[cell],
        }

    cells = range(len(rank))
    bad = heapq.nsmallest(count, cells, lambda cell: (-rank[cell], -frequency[cell]))
    worst = [example(cell) for cell in bad if rank[cell] > 1]  # if all are first, none is bad
    for triple in worst:
        query = {role: id for role, id in triple["ids"].items() if role != f"{triple['side']}s"}
        ids = topk(model, **query, k=_INSTEAD, known=known, dims=dims, pad=True).ids[0].tolist()
        triple["instead"] = [text(id, names[0]) for id in ids if id >= 0]
    good = heapq.nsmallest(count, cells, lambda cell: (rank[cell], frequency[cell]))
    return worst, [example(cell) for cell in good]


def _breakable(markup: Any) -> Any:
    """Allow lines to break after the signs that join the words of a name."""
    return type(markup)(re.sub(r"(?<=[^\W_]{2})([_/.]+)(?=\w\w)", r"\1<wbr>", str(markup)))
