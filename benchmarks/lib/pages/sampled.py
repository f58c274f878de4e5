"""The block of docs/explanation/sampled_vs_exact.md: a section for each graph of the study."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.pages import sources
from lib.results import Row, Rows, of_section, read_rows
from lib.tables import Columns, human_seconds, markdown

FILE = "cpu-sampled-vs-exact.json"
METRIC = "mrr"
UNTRAINED = 0.05  # exact MRR of models that hardly trained: the order of the others is shown too


def block(folder: Path) -> str:
    """Write the tables of every graph in the results file, and where they come from."""
    rows = read_rows(folder / FILE)
    graphs = dict.fromkeys(row["graph"] for row in rows)
    parts = [
        "\n".join(_of_all([[row for row in rows if row["graph"] == graph] for graph in graphs]))
    ]
    for graph in graphs:
        own = "\n".join(of_graph([row for row in rows if row["graph"] == graph]))
        picture = f"{FILE.removesuffix('.json')}-{graph}.png"
        if (folder / picture).is_file():
            place = f"../../benchmarks/results/{picture}"
            title, own = own.split("\n\n", 1)
            own = f"{title}\n\n![MRR of each model by protocol, {graph}]({place})\n\n{own}"
        parts.append(own)
    return "\n\n".join(parts)


def _of_all(graphs: list[Rows]) -> Iterator[str]:
    """Yield a table of the order of models in all graphs."""
    orders = [order for rows in graphs for order in _orders(rows)]
    yield (
        "Kendall's tau between each protocol's order of models and the exact order, by MRR: mean "
        "over draws. In brackets, pairs of models that most draws flip. Lines *without* a model "
        f"leave out models whose exact MRR is below {UNTRAINED:g}: they hardly trained.\n"
    )
    protocols = [it for it in orders[0] if it not in ("graph", "exact")]
    columns = [("graph", "{graph}"), *((f"{it}:", _order_by(it)) for it in protocols)]
    yield from markdown(columns, orders)


def _orders(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the order of all models by each protocol, and that of the trained ones if some are not.

    Each is a row of the table of all graphs.
    """
    graph, models = rows[0]["graph"], list(_models(rows, ["exact"]))
    found = {
        row["protocol"]: row
        for row in of_section(rows, "order")
        if (row["metric"], row["scope"]) == (METRIC, "last")
    }
    yield {"graph": graph} | found
    weak = [row["model"] for row in models if row["exact"]["mean"] < UNTRAINED]
    if weak:
        name = f"{graph} without {', '.join(weak)}"
        yield {"graph": name} | {it: order_without(rows, it, weak) for it in found}


def order_without(rows: Rows, protocol: str, weak: Sequence[str]) -> dict[str, Any]:
    """Return the order of all other models, which follows from the flips: no metrics tie."""
    count = len(of_section(rows, "run")) - len(weak)
    pairs = count * (count - 1) // 2
    kept = [it for it in _flips(rows) if not {it["better"], it["worse"]} & set(weak)]
    shares = [it["shares"].get(protocol, 0.0) for it in kept]
    most = sum(share > 0.5 for share in shares)
    return {"tau": 1 - 2 * sum(shares) / pairs, "flipped_in_most": most, "pairs": pairs}


def _order_by(protocol: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        own = row[protocol]
        return f"{own['tau']:.2f} ({own['flipped_in_most']} of {own['pairs']})"

    return cell


def of_graph(rows: Rows) -> Iterator[str]:
    """Yield the lines of a graph's section."""
    about = rows[0]
    protocols = [row["protocol"] for row in of_section(rows, "seconds")]
    draws = max(row["draws"] for row in of_section(rows, "seconds"))
    runs = of_section(rows, "run")
    seconds = [run["seconds_training"] for run in runs]
    steps = [run["steps"] for run in runs]
    types = "of train" if about["types"] == "train" else f"by `{about['types']}`"
    yield f"### {about['graph']}\n"
    yield (
        f"{about['test_triples']:,} test triples, both sides, {about['entities']:,} entities; "
        f"types {types}; {draws} draws. {len(runs)} models, {min(steps):,} to {max(steps):,} steps "
        f"each, which took {human_seconds(min(seconds))} to {human_seconds(max(seconds))} on a "
        "machine that others used.\n"
    )
    yield (
        "MRR at the last checkpoint; of sampled protocols the mean and the standard deviation over "
        "draws:\n"
    )
    yield from markdown(_model_columns(protocols), list(_models(rows, protocols)))
    yield (
        "\nEach protocol against exact ranks among all entities, by MRR. Bias and spread: means "
        "over models. Tau is Kendall's: 1 is the exact order, *last* its mean over draws for the "
        "last checkpoints, *least* its lowest draw, and *all checkpoints* orders those of all "
        "models. Flips: pairs of models in another order than the exact one. Choice: share of "
        "draws whose best of a model's checkpoints is not the exact best. Seconds: CPU seconds of "
        "ranking the test set once, median over last checkpoints; in brackets, of drawing the "
        "negatives, which all models share.\n"
    )
    yield from markdown(PROTOCOLS, list(_protocols(rows, protocols)))
    pairs = _flips(rows)
    if pairs:
        yield "\nPairs of models that a protocol flips, and the share of draws that flip them:\n"
        yield from markdown(_flip_columns(protocols[1:]), pairs)
    else:
        yield "\nNo protocol flipped a pair of models by MRR in any draw."
    yield "\nTau at the last checkpoints by other metrics, mean over draws:\n"
    yield from markdown(OTHERS, list(_others(rows, protocols)))
    yield "\nMRR of a model whose scores are all equal, by the treatment of ties:\n"
    yield from markdown(TIES, of_section(rows, "ties"))
    yield ""
    yield from sources([rows])


def _models(rows: Rows, protocols: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row of each model, the best first, with the MRR by each protocol."""
    last = [row for row in of_section(rows, "checkpoint") if row["is_last"]]
    names = dict.fromkeys(row["model"] for row in last)
    found = [
        {"model": name} | {row["protocol"]: row[METRIC] for row in last if row["model"] == name}
        for name in names
    ]
    yield from sorted(found, key=lambda row: -row[protocols[0]]["mean"])


def _model_columns(protocols: list[str]) -> Columns:
    return [("model", "{model}"), *((f"{it}:", _mean_of(it)) for it in protocols)]


def _mean_of(protocol: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row[protocol]
        if value["low"] == value["high"]:
            return f"{value['mean']:.4f}"
        return f"{value['mean']:.4f} ± {value['spread']:.4f}"

    return cell


def _protocols(rows: Rows, protocols: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what stands in each line of the table of protocols."""
    checkpoints = [row for row in of_section(rows, "checkpoint") if row["is_last"]]
    for name in protocols:
        own = [row[METRIC] for row in checkpoints if row["protocol"] == name]
        orders = {
            row["scope"]: row
            for row in of_section(rows, "order")
            if (row["protocol"], row["metric"]) == (name, METRIC)
        }
        (choice,) = (
            row
            for row in of_section(rows, "choice")
            if (row["protocol"], row["metric"]) == (name, METRIC)
        )
        (seconds,) = (row for row in of_section(rows, "seconds") if row["protocol"] == name)
        yield {
            "protocol": name,
            "bias": sum(it["bias"] for it in own) / len(own),
            "spread": sum(it["spread"] for it in own) / len(own),
            **orders,
            "choice": choice["mean"],
            "seconds": seconds,
        }


def _flips(rows: Rows) -> Rows:
    """Return pairs of models with the share of draws that flip them by each protocol."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in of_section(rows, "flip"):
        if row["metric"] == METRIC:
            pair = found.setdefault((row["better"], row["worse"]), {**row, "shares": {}})
            pair["shares"][row["protocol"]] = row["share"]
    return sorted(found.values(), key=lambda pair: -pair["exact_gap"])


def _flip_columns(protocols: list[str]) -> Columns:
    return [
        ("better, exactly", "{better}"),
        ("worse, exactly", "{worse}"),
        ("exact gap:", "{exact_gap:.4f}"),
        *((f"{it}:", _share_by(it)) for it in protocols),
    ]


def _share_by(protocol: str) -> Callable[[Row], str]:
    return lambda row: f"{row['shares'].get(protocol, 0):.0%}"


def _others(rows: Rows, protocols: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield tau of the last checkpoints by each metric."""
    for name in protocols:
        yield {"protocol": name} | {
            row["metric"]: row["tau"]
            for row in of_section(rows, "order")
            if row["protocol"] == name and row["scope"] == "last"
        }


def _seconds(row: Row) -> str:
    own = row["seconds"]
    text = human_seconds(own["cpu_seconds"]["median"])
    if "drawing_cpu_seconds" in own:
        text += f" ({human_seconds(own['drawing_cpu_seconds'])})"
    return text


PROTOCOLS: Columns = (
    ("protocol", "{protocol}"),
    ("bias:", "{bias:+.4f}"),
    ("spread:", "{spread:.4f}"),
    ("tau, last:", "{last[tau]:.3f}"),
    ("least tau:", "{last[tau_low]:.3f}"),
    ("tau, all checkpoints:", "{all[tau]:.3f}"),
    ("pairs flipped in some draw:", "{last[flipped_in_some]} of {last[pairs]}"),
    ("in most draws:", "{last[flipped_in_most]}"),
    ("choice:", "{choice:.1%}"),
    ("CPU seconds:", _seconds),
)
OTHERS: Columns = (
    ("protocol", "{protocol}"),
    *((f"{name}:", f"{{{name}:.3f}}") for name in ("mrr", "hits@1", "hits@3", "hits@10")),
)
TIES: Columns = (
    ("protocol", "{protocol}"),
    *(
        (f"{it}:", f"{{constant_mrr[{it}]:.6f}}")
        for it in ("optimistic", "realistic", "pessimistic")
    ),
    ("most that ties move the MRR of a trained checkpoint (model/step):", lambda row: _width(row)),
)


def _width(row: Row) -> str:
    values = row["widest_mrr"]
    return f"{values['optimistic'] - values['pessimistic']:.6f} ({row['widest']})"
