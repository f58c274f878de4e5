"""Rows of the results file: what the measured metrics say of each protocol."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from .measures import ALL, METRICS, RANK_TYPES, TYPED, Measured
from .statistics import bias_and_spread, flips, order_of, other_choices

CONSTANT = "constant"  # the name of the model whose scores are all equal

Row = dict[str, Any]
Values = Mapping[str, Mapping[str, Sequence[float]]]  # draws of each checkpoint, by metric


def rows_of(
    exact: Measured, draws: Mapping[str, Sequence[Measured]], runs: Mapping[str, Row]
) -> Iterator[Row]:
    """Yield the rows of a graph.

    Parameters
    ----------
    exact
        Metrics of each checkpoint, and of the constant model, by the exact protocols.
    draws
        For each sampled protocol, the metrics of each draw; draw 0 includes the constant model.
    runs
        For each model of the study: facts of its training.
    """
    constant = f"{CONSTANT}/0"
    keys = [key for key in exact if key != constant]
    steps = {name: [key for key in keys if key.rpartition("/")[0] == name] for name in runs}
    last = [own[-1] for own in steps.values()]
    protocols = {name: [exact] for name in (ALL, TYPED)} | dict(draws)
    for name, facts in runs.items():
        yield {"section": "run", "model": name, **facts}
    for protocol, drawn in protocols.items():
        values = {
            key: {it: [draw[key][protocol]["realistic"][it] for draw in drawn] for it in METRICS}
            for key in keys
        }
        for key in keys:
            name, _, step = key.rpartition("/")
            about = {"protocol": protocol, "model": name, "step": int(step)}
            yield {"section": "checkpoint", **about, "is_last": key in last} | {
                metric: bias_and_spread(_exact(exact, key, metric), values[key][metric])
                for metric in METRICS
            }
        yield {"section": "seconds", "protocol": protocol, **_seconds(drawn, last, protocol)}
        for metric in METRICS:
            yield from _orders(exact, values, protocol, metric, steps)
        yield {"section": "ties", "protocol": protocol, **_ties(drawn[0], keys, protocol)}


def _exact(exact: Measured, key: str, metric: str) -> float:
    return float(exact[key][ALL]["realistic"][metric])


def _orders(
    exact: Measured,
    values: Values,
    protocol: str,
    metric: str,
    steps: Mapping[str, Sequence[str]],
) -> Iterator[Row]:
    """Yield rows about the order of last and of all checkpoints, and about chosen checkpoints."""
    about = {"protocol": protocol, "metric": metric}
    for scope, keys in (
        ("last", {name: own[-1] for name, own in steps.items()}),
        ("all", {key: key for own in steps.values() for key in own}),
    ):
        known = {name: _exact(exact, key, metric) for name, key in keys.items()}
        drawn = {name: values[key][metric] for name, key in keys.items()}
        yield {"section": "order", "scope": scope, **about, **order_of(known, drawn)}
        if scope == "last":
            for pair in flips(known, drawn):
                yield {"section": "flip", **about, **pair}
    chosen = {
        name: other_choices(
            [_exact(exact, key, metric) for key in own], [values[key][metric] for key in own]
        )
        for name, own in steps.items()
    }
    yield {"section": "choice", **about, "mean": fmean(chosen.values()), "models": chosen}


def _seconds(drawn: Sequence[Measured], keys: Sequence[str], protocol: str) -> Row:
    """Return CPU seconds of one ranking of the test set, over models, and of drawing negatives."""
    measured = [draw[key][protocol] for draw in drawn for key in keys]
    timed = [it["cpu_seconds"] for it in measured if "cpu_seconds" in it]
    found: Row = {
        "cpu_seconds": {
            "median": median(timed),
            "low": min(timed),
            "high": max(timed),
        },
        "draws": len(drawn),
    }
    if "drawing_cpu_seconds" in measured[0]:
        found["drawing_cpu_seconds"] = median(it["drawing_cpu_seconds"] for it in measured)
        found["candidates"] = measured[0]["candidates"]
    return found


def _ties(measured: Measured, keys: Sequence[str], protocol: str) -> Row:
    """Return MRR of the constant model by rank type, and the most that ties move a trained one."""
    constant = measured[f"{CONSTANT}/0"][protocol]
    widths = {
        key: measured[key][protocol]["optimistic"]["mrr"]
        - measured[key][protocol]["pessimistic"]["mrr"]
        for key in keys
    }
    widest = max(widths, key=widths.__getitem__)
    return {
        "constant_mrr": {it: constant[it]["mrr"] for it in RANK_TYPES},
        "widest": widest,
        "widest_mrr": {it: measured[widest][protocol][it]["mrr"] for it in RANK_TYPES},
    }
