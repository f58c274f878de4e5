"""What eval_mem prints: memory and time by dimension, and what a reader must know to trust them."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from lib.tables import OURS, human_bytes, human_seconds, new_table


def memory_table(rows: list[dict[str, Any]]) -> Table:
    """Bytes beyond the inputs."""
    batch = rows[0]["formula"]["batch"]
    libraries = [f"{name}\nby formula" for name in ("PyKEEN", "LibKGE", "official code")]
    table = new_table(
        "Memory beyond the inputs",
        *("dim", f"one tensor\n\\[{batch}, N, dim] complex", *libraries),
        "official formula,\nmeasured",
    )
    table.add_column("kgfast\nmeasured", justify="right", style=OURS)
    for row in rows:
        formula = row["formula"]
        table.add_row(
            str(row["dim"]),
            *(human_bytes(formula[name]) for name in ("tensor", "pykeen", "libkge", "official")),
            _naive_memory(row["naive"]),
            human_bytes(row["kgfast"]["bytes"]),
        )
    return table


def _naive_memory(measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "not run"
    if not measured["batch"]:
        return "did not fit"
    return f"{human_bytes(measured['bytes'])} at batch {measured['batch']}"


def time_table(rows: list[dict[str, Any]]) -> Table:
    """Seconds of the whole test set, and what came out."""
    title = "Time for the whole test set, both sides, filtered"
    table = new_table(title, "dim", "naive\n(one batch x n)")
    table.add_column("kgfast\nmeasured", justify="right", style=OURS)
    for name in (
        *("elements/s\n(N x dim x queries)", "MRR\nfiltered", "hits@10\nfiltered"),
        "against the float64\nspecification",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        ours = row["kgfast"]
        table.add_row(
            str(row["dim"]),
            _naive_time(row["naive"]),
            human_seconds(ours["seconds"]),
            f"{ours['elements_per_s'] / 1e9:.3g} billion",
            _metric(ours["mrr"]),
            _metric(ours["hits@10"]),
            _verdict(row["check"]),
        )
    return table


def _naive_time(measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "not run"
    return "~" + human_seconds(measured["extrapolated_seconds"]) if measured["batch"] else "-"


def _metric(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"


def _verdict(check: Mapping[str, Any]) -> str:
    if not check["queries"]:
        return "not checked"
    if check["equal"]:
        return f"equal ({check['queries']} queries)"
    return f"[bold red]{check['differing']} of {check['queries']} DIFFER[/]"


def conclusion(row: Mapping[str, Any]) -> str:
    """The largest dimension in one line."""
    ours, measured = row["kgfast"], row["naive"]
    memory = f"{human_bytes(row['formula']['tensor'])} -> {human_bytes(ours['bytes'])}"
    line = f"dim {row['dim']}: {memory}"
    if measured and measured["batch"]:
        naive_time = human_seconds(measured["extrapolated_seconds"])
        line += f"; ~{naive_time} -> {human_seconds(ours['seconds'])}"
    return line


def notes(row: Mapping[str, Any], cap: float | None) -> list[str]:
    """What a reader must know to trust the tables."""
    sizes, measured = row["graph"], row["naive"]
    lines = [
        f"By formula: the live float32 temporaries of {row['formula']['batch']} queries against "
        f"N = {sizes['entities']:,} entities; the headline takes the one tensor alone.",
    ]
    if row["embeddings"] == "random":
        lines.append(
            "The embeddings are RANDOM (RotatE.init, seed 0): these metrics are those of chance, "
            "and kgfast is slower than on trained ones."
        )
    else:
        lines.append("The embeddings are those that the synthetic graph was drawn from.")
    if measured and measured["batch"]:
        lines.append(
            "~ extrapolated: one measured batch of the official formula in plain torch, as large "
            f"as fits in {human_bytes(cap or 0)}, times the number of batches. The official "
            "code's Python filter and slow norm are left out: its true time is longer."
        )
        lines.append(
            f"Its ranks are kgfast's in {measured['agreeing_ranks']} of "
            f"{measured['compared_ranks']} queries at dim {row['dim']}; it computes in float32."
        )
    if row["kgfast"]["queries"] < 2 * sizes["test_triples"]:
        lines.append(
            f"kgfast's kernels are not built here: the reference backend ranked only "
            f"{row['kgfast']['queries']} queries. These times say nothing about kgfast."
        )
    return lines
