"""Compare the best k candidates by kgfast with those of torch, KeOps and PyKEEN, in turns.

    python benchmarks/topk_speed.py            everything; writes results/cpu-topk-speed.json

Works: the 10 best tails of 128 RotatE queries, beside rank counts by the same sweep; greedy
decoding of an output head, 40,000 hidden states by 50,011 outputs; 10 million outputs; and one
prediction. A sample of kgfast's ids is compared with the float64 specification.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib.bench import (
    BATCH,
    OPTIONS,
    Contender,
    Race,
    built,
    differs,
    embeddings,
    equals_reference,
    kgfast_counts,
)
from lib.benchmark import Benchmark, Option, Options
from lib.columns import LOSSES, NAMES
from lib.machine import available_memory
from lib.peers import topk as peers
from lib.peers.ranks import PyKEEN
from lib.peers.topk import Best, Search
from lib.results import Row, Rows, find, of_section
from lib.tables import Columns

REFERENCE_QUERIES = 4  # checked against the specification
REFERENCE_ROWS = 1 << 21  # rows of a larger table, whose first rows are searched once more
HEAD = (40_000, 50_011, 64)  # hidden states, outputs, width
OUTPUTS = (64, 10_000_000, 64)
QUICK_HEAD, QUICK_OUTPUTS = (300, 501, 8), (4, 20_000, 8)
PREDICTIONS = 8  # queries, one at a time


def rotate_rows(options: Options) -> Iterator[Row]:
    """Yield the k best tails; `counts` is the rank of one target in place of the k best."""
    race = Race(options)
    for dim in options.dims:
        for table in options.tables:
            work = race.rotate_work(table, dim, BATCH)
            search = Search(work.queries, work.table, options.k)
            contenders = {
                "kgfast": partial(best_of, search, "rotate"),
                "counts": partial(kgfast_counts, work),
            }
            makers = {
                "compile": partial(peers.compiled, search),
                "eager": partial(peers.eager, search),
                "keops": partial(peers.keops, search),
            }
            what = {"dim": dim, "table": table, "k": search.k, "batch": BATCH}
            yield from compared(race, ("rotate", "rotate"), search, contenders, makers, what)


def head_rows(options: Options) -> Iterator[Row]:
    """Yield greedy decoding of an output head."""
    search = normal_search(options, QUICK_HEAD if options.quick else HEAD)
    yield from outputs_race(options, "head", search, partial(peers.eager_head, search))


def outputs_rows(options: Options) -> Iterator[Row]:
    """Yield outputs by the million, where they fit into memory."""
    sizes = QUICK_OUTPUTS if options.quick else OUTPUTS
    if available_memory() < 2 * 4 * sizes[1] * sizes[2]:  # a copy is made on the way to a GPU
        return
    search = normal_search(options, sizes)
    yield from outputs_race(options, "outputs", search, partial(peers.eager_outputs, search))


def normal_search(options: Options, sizes: tuple[int, int, int]) -> Search:
    """Return a search among normal numbers."""
    batch, outputs, width = sizes
    generator = torch.Generator().manual_seed(0)
    return Search(
        torch.randn(batch, width, generator=generator).to(options.device),
        torch.randn(outputs, width, generator=generator).to(options.device),
        1,
    )


def outputs_race(options: Options, section: str, search: Search, eager: Contender) -> Iterator[Row]:
    """Yield a race over dot products."""
    (batch, dim), entities = search.queries.shape, len(search.table)
    what = {"dim": dim, "table": "normal", "k": search.k, "batch": batch, "entities": entities}
    contenders, makers = {"kgfast": partial(best_of, search, "dot")}, {"eager": eager}
    yield from compared(Race(options), (section, "dot"), search, contenders, makers, what)


def best_of(search: Search, score: str) -> Best:
    """Search by kgfast."""
    return ops.topk(search.queries, search.table, search.k, score=score)


def compared(
    race: Race,
    section: tuple[str, str],
    search: Search,
    contenders: Mapping[str, Contender],
    makers: Mapping[str, Contender],
    work: Mapping[str, Any],
) -> Iterator[Row]:
    """Let all take turns, and compare the ids; a section is named with its score."""
    answers, rows = race.run(section[0], contenders, makers, work)
    for name, found in answers.items():
        if name not in ("kgfast", "counts"):
            other = (found[1] != answers["kgfast"][1]).any(1)
            rows[name] |= {"compared_queries": len(other), "differing_queries": int(other.sum())}
    few = Search(search.queries[:REFERENCE_QUERIES], search.table[:REFERENCE_ROWS], search.k)
    call = partial(best_of, few, section[1])
    found = answers["kgfast"] if len(few.table) == len(search.table) else call()
    rows["kgfast"]["equals_reference"] = equals_reference(call, found)
    yield from rows.values()


def prediction_rows(options: Options) -> Iterator[Row]:
    """Yield one (head, relation, ?) at a time, as predict_target takes them."""
    race, k = Race(options), options.k
    for dim in options.dims:
        planted = embeddings(race.graph, "planted", dim)
        pairs = race.graph.test.hrt[:PREDICTIONS, :2].tolist()
        makers = {"pykeen": partial(PyKEEN, race.graph, *planted, race.device)}
        found, missing = built(makers if "pykeen" in options.peers else {})
        model = found["pykeen"].by_kgfast() if found else race.model("planted", dim)
        answer = {"kgfast": partial(predict, model)}
        if found:
            answer["pykeen"] = partial(peers.predict_target, found["pykeen"])
            answer["score_t + topk"] = partial(peers.score_and_topk, found["pykeen"])
        contenders = {name: partial(one_by_one, it, pairs, k) for name, it in answer.items()}
        answers = {name: run() for name, run in contenders.items()}  # and warms up
        timings = race.stopwatch.interleave(contenders, options.rounds)
        what = {"dim": dim, "table": "planted", "k": k, "batch": 1}
        one = {name: timing.scaled(1 / PREDICTIONS) for name, timing in timings.items()}
        for name, timing in one.items():
            row = race.timed_row("prediction", name, timing, one["kgfast"], what)
            if name != "kgfast":
                both = zip(answers[name], answers["kgfast"], strict=True)
                differing = sum(theirs != ours for theirs, ours in both)
                row |= {"compared_queries": PREDICTIONS, "differing_queries": differing}
            yield row
        for name, note in missing.items():
            yield race.row("prediction", name, **what, seconds=None, note=note)


def predict(model: Any, head: int, relation: int, k: int) -> list[int]:
    """Predict once by kgfast."""
    ids: list[list[int]] = kgfast.topk(model, heads=head, relations=relation, k=k).ids.tolist()
    return ids[0]


def one_by_one(answer: Contender, pairs: list[list[int]], k: int) -> list[list[int]]:
    """Answer each query in its own call."""
    return [answer(head, relation, k) for head, relation in pairs]


def ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield measured works, ratios and goals."""
    dim = max((row["dim"] for row in of_section(rows, "rotate")), default=0)
    for table in ("random", "planted"):
        what = f"rotate, {BATCH} queries, dim {dim}, {table}: kgfast against "
        for contender in ("counts", "compile", "eager", "keops"):
            row = find(rows, "rotate", contender, dim=dim, table=table)
            if row is None:
                continue
            if contender == "counts":
                yield what + "rank_counts, in time", f"{1 / row['times_kgfast']:.2f}x", "<= 1.3x"
            else:
                yield what + NAMES[contender], f"{row['times_kgfast']:.1f}x", ""
    for section, contender, what in (
        ("head", "eager", "output head: kgfast against matmul + topk in chunks"),
        ("outputs", "eager", "10 million outputs: kgfast against matmul + topk in chunks"),
        ("prediction", "pykeen", "one prediction: kgfast against PyKEEN's predict_target"),
        ("prediction", "score_t + topk", "one prediction: kgfast against score_t of PyKEEN + topk"),
    ):
        for row in of_section(rows, section):
            if row["contender"] == contender and row["seconds"]:
                yield f"{what}, dim {row['dim']}", f"{row['times_kgfast']:.1f}x", ">= 1x"


BEST: Columns = (*LOSSES[:-1], ("other ids:", differs))
BENCHMARK = Benchmark(
    "topk_speed",
    __doc__,
    {
        "rotate": rotate_rows,
        "head": head_rows,
        "outputs": outputs_rows,
        "prediction": prediction_rows,
    },
    options=OPTIONS | {"k": Option("best candidates", 10)},
    tables={
        "rotate": ("RotatE, the {k} best of {batch} queries", BEST),
        "head": ("An output head: the best of {entities:,} outputs", BEST),
        "outputs": ("Many outputs: the best of {entities:,}", BEST),
        "prediction": ("One prediction of the {k} best tails", BEST),
    },
    ratios=ratios,
    has_device=True,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
