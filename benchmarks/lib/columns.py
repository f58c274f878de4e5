"""Columns of tables that stand both on a benchmark's console and on a page."""

from typing import Any

from lib.results import Row
from lib.tables import LABELS, Columns, cell_of, human_seconds, median

NAMES = LABELS | {
    "pykeen": "PyKEEN",
    "bare": "bare loop, packed rows",
    "linear": "linear_cross_entropy",
    "products": "the three matrix products",
    "kgfast_bf16": "kgfast, bf16",
    "eager_bf16": "torch, eager, bf16",
}
RACE: Columns = (
    (" ", lambda row: NAMES.get(row["contender"], row["contender"])),
    ("median:", median),
    ("min .. max:", "{seconds:spread}"),
    ("x kgfast:", "{times_kgfast:.2f}"),
)
RACE_WORK: Columns = (
    *RACE[:1],
    ("table", "{table}"),
    ("dim:", "{dim}"),
    *RACE[1:3],
    ("elements/s:", "{elements_per_s:billions}"),
    *RACE[3:],
)
CROPS = {
    "med": "RotatE + MED, one nested sweep",
    "med separate": "RotatE + MED, a sweep each",
    "widest alone": "RotatE, the widest alone",
    "med + rscf": "RotatE + MED + RSCF",
    "rscf": "RotatE + RSCF, the widest alone",
}
MODELS = {"rotate": "RotatE", "rotate + rscf": "RotatE + RSCF"}


CLASSES: Columns = (
    ("run", "{run}"),
    ("triples:", "{triples:,}"),
    ("accuracy:", "{accuracy:.3f}"),
    ("precision:", "{precision:.3f}"),
    ("recall:", "{recall:.3f}"),
    ("F1:", "{f1:.3f}"),
)
STEP_COUNTS: Columns = (
    ("step", "{mode}"),
    ("kernels:", "{kernels}"),
    ("operators of torch:", "{operators}"),
    ("together:", "{together}"),
    ("goal:", "{goal:d}"),
    ("operators within kgfast's:", "{within}"),
    ("waits:", "{waits}"),
)
CASE_TIMES: Columns = (("work", "{step}: {case}"), ("time:", "{seconds[median]:time}"))


def _gap(row: Row) -> str:
    gap = max((it["gap"] for it in row["different"]), default=None)
    return "" if gap is None else f"{gap:.0e}"


PYKEEN: Columns = (
    ("model", "{model}, d = {dim}"),
    ("PyKEEN, CPU s:", "{pykeen_cpu_seconds:,.0f}"),
    ("kgfast, CPU s:", "{cpu_seconds:.2f}"),
    ("times:", "{times:,.0f}"),
    ("PyKEEN : kgfast, seconds passed:", "{pykeen_seconds:,.0f} : {seconds:.2f}"),
    ("ranks that differ:", lambda row: f"{len(row['different'])} of {row['compared']}"),
    ("gap:", _gap),
)


WHERE = ("instructions", "{machine[isa]}, {machine[name]}")
DOT_TIERS: Columns = (
    ("instructions", "{machine[isa]}"),
    ("work", lambda row: {"ranks": "ranks", "best": "best 10"}[row["work"]]),
    ("entities:", "{entities:,}"),
    ("features:", "{dim}"),
    ("queries:", "{batch}"),
    ("table", "{table}"),
    ("times faster:", "{speedup:.2f}"),
    ("to float32:", "{pairs[float32]:.2%}"),
    ("canonical:", "{pairs[canonical]:.3%}"),
)


def _peer(row: Row) -> str:
    name = row["best_peer"]
    return f"{name}, {row['options'][name]}"


def _best_time(row: Row, key: str = "seconds") -> Any:
    return row[key][row["best_peer"]]


def marked(row: Row, times: str) -> str:
    """Write the times of a row of `with_winners`, and whether the peer wins."""
    return cell_of(row, times) + ": peer wins" * bool(row.get("wins"))


def _winner(row: Row) -> str:
    """Write which of the best peer and kgfast with an index is faster, and by how much."""
    times = _best_time(row, "times_index")
    return f"**{times:.2f}x**" if times >= 1 else f"{times:.2f}x: {row['best_peer']} wins"


PEERS: Columns = (
    WHERE,
    ("score", "{score}"),
    ("table", lambda row: cell_of(row, "{table} (`{run}`)" if "run" in row else "{table}")),
    ("entities x features:", "{entities:,} x {dim}"),
    ("threads:", "{threads}"),
    ("queries:", "{batch}"),
    ("kgfast, index:", "{seconds[index][median]:time}"),
    ("without:", "{seconds[table][median]:time}"),
    ("best peer", _peer),
    ("takes:", lambda row: human_seconds(_best_time(row)["median"])),
    ("times the index:", _winner),
    ("bare loop, times:", "{times_index[bare loop]:.2f}x"),
)
STEPS: Columns = (  # training steps of MED
    (" ", lambda row: MODELS[row["model"]]),
    ("batch x negatives", "{batch} x {negatives_per_triple}, {negatives:words}"),
    (" ", "{way}"),
    ("step:", "{seconds[median]:time}"),
    ("times the widest alone:", "{times_widest:.2f}x"),
)


def _factor(row: Row) -> str:
    return cell_of(row, "{kgfast[factor_bytes]:bytes}") if row["kgfast"]["factor_bytes"] else ""


CROP_RANKS: Columns = (
    (" ", lambda row: CROPS[row["way"]]),
    ("by formula:", "{formula[bytes]:bytes}"),
    ("kgfast beyond the tables:", "{kgfast[bytes]:positive_bytes}"),
    ("and the table `b`:", _factor),
    ("time:", "{kgfast[seconds]:time}"),
)
INFLUENCE_WORKS = {
    "whole": "",
    "captum": ", no biases",
    "part": ", the first examples, hardly a query twice",
}


def _contender_of_influence(row: Row) -> str:
    name = "kgfast" if row["contender"] == "kgfast" else f"captum, batch {row['batch']}"
    return name + INFLUENCE_WORKS[row["section"]]


def _guess(row: Row) -> str:
    return "~" if row.get("extrapolated_from") else ""


def _cores(row: Row) -> str:
    times = f" ({row['cpu_seconds_ratio']:.1f}x)" if row["contender"] == "captum" else ""
    return f"{_guess(row)}{row['cpu_seconds']:,.0f}{times}"


INFLUENCES: Columns = (
    ("graph", "{dataset}"),
    ("training examples:", "{examples:,}"),
    ("by", _contender_of_influence),
    ("seconds:", lambda row: f"{_guess(row)}{row['seconds']:,.0f}"),
    ("seconds of cores:", _cores),
)


def _peak(row: Row) -> str:
    return cell_of(row, "{note}" if row["bytes"] is None else "{bytes:bytes}")


PATHS: Columns = (
    ("paths:", "{paths:,}"),
    ("by", lambda row: "kgfast" if row["contender"] == "kgfast" else "torch, all paths in memory"),
    ("peak:", _peak),
    ("seconds:", "{seconds[median]:.1f}"),
    ("seconds of cores:", "{cpu_seconds[median]:.1f}"),
    ("ratio of these:", "{cpu_seconds_ratio:.2f}x"),
)

# Sections of scale.py.
STREAMED: Columns = (
    ("entities:", "{entities:,} x {dim}"),
    ("file:", "{file_bytes:bytes}"),
    ("seconds:", "{seconds[median]:,.1f}"),
    ("elements/s:", "{elements_per_s:giga}"),
    ("in memory:", "{memory_elements_per_s:giga}"),
    ("disk:", "{disk_elements_per_s:giga}, {disk_bytes_per_s:bytes}/s"),
    ("of what binds:", "{of_binding:.0%} of {binding}"),
    ("by cores:", "{of_memory_by_cores:.0%}"),
    ("memory of the process:", "{anonymous_bytes:bytes}"),
)
SAMPLED: Columns = (
    ("  ", "{contender}"),
    ("entities:", "{entities:,} x {dim}"),
    ("queries:", "{queries:,}"),
    ("candidates:", "{candidates:,}"),
    ("seconds:", "{seconds:,.1f}"),
    ("MRR:", "{mrr:.3f}"),
    ("Hits@10:", "{hits_10:.3f}"),
)

# Works of loss_mem.py.
LOSS_WORKS = {
    "pairwise": "pairwise_scores",
    "indexed": "indexed_scores",
    "bce dot": "bce, all contenders in turns",
    "bce rotate": "bce, all contenders in turns",
}
LOSS_NAMES = NAMES | {"eager": "torch, eager"}


def _loss_work(row: Row) -> str:
    work = LOSS_WORKS.get(row["section"], row["section"])
    optional = ("{score}", "{table} table", "k = {k}")
    return ", ".join([work, *filter(None, (cell_of(row, it) for it in optional))])


def _loss_shape(row: Row) -> str:
    columns = row.get("candidates", row["entities"])
    per_row = f" (of {row['entities']:,})" if columns != row["entities"] else ""
    return f"{row.get('batch', 1):,} x {columns:,}{per_row} x {row['dim']}"


LOSSES: Columns = (
    ("what", _loss_work),
    ("batch x entities x dim", _loss_shape),
    ("contender", lambda row: LOSS_NAMES.get(row["contender"], row["contender"])),
    ("time:", median),
    ("times kgfast's:", lambda row: marked(row, "{times_kgfast:.2f}x")),
    ("peak memory:", "{bytes:bytes}"),
)
