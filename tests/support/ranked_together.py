"""Work of processes that rank together; tests compare it with that of one process."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import kgfast
from kgfast.distributed import processes
from kgfast.tables import Shard
from kgfast.training import Config, Trainer
from support.shared_out import DIM, RELATIONS, FileTable, N, example, model_of, tables_of

CANDIDATES = [3, 5, 50, 96, 20]
THRESHOLDS = torch.linspace(-12, 3, 40)


def joint(call: Callable[..., Any], *args: Any, timeout: float = 30, **options: Any) -> Any:
    """Call a function of kgfast in all processes together."""
    with processes(timeout=timeout):
        return call(*args, **options)


def results_of(name: str, spans: list[tuple[int, int]], rank: int) -> list[Any]:
    graph, model = example(), model_of(name, spans[rank])
    options: dict[str, Any] = {"known": graph.known, "timeout": 30}
    heads, relations, tails = graph.hrt.T
    few = {"heads": heads, "relations": relations, "batch_size": 16} | options
    some = {"candidate_ids": CANDIDATES, "exclude": "anchor"} | options
    every = {"tails": tails[:3], "relations": 1, "k": 97, "pad": True} | options
    return [
        joint(kgfast.rank, model, graph.hrt, batch_size=16, **options),
        joint(kgfast.rank, model, graph.hrt[:9], **some),
        joint(kgfast.topk, model, k=7, **few),
        joint(kgfast.topk, model, **every),
        joint(kgfast.above, model, THRESHOLDS, **few),
        too_many(model, heads, relations),
    ]


def too_many(model: Any, heads: Tensor, relations: Tensor) -> str:
    """Return the error of a call that finds more than it may return."""
    try:
        joint(kgfast.above, model, -1e9, heads=heads, relations=relations, max_results=50)
    except ValueError as error:
        return str(error)
    return "none"


def tables_with_nan() -> tuple[Tensor, Tensor]:
    """Make the tables of RotatE, in which two rows are not finite."""
    entity, relation = tables_of("RotatE")
    entity[[4, 60]] = torch.nan
    return entity, relation


def of_files(rank: int) -> Any:
    """Rank shards that are read in blocks; return ranks and the longest block."""
    from kgfast.eval import rows

    rows.PART_BYTES = 10 * 8 * DIM
    entity, relation = tables_with_nan()
    graph = example()
    first, last = ((0, 33), (33, 97))[rank]
    table = FileTable(entity[first:last])
    shard = Shard(table, start=first, total_rows=N)
    ranks = joint(
        kgfast.rank,
        kgfast.RotatE(shard, relation),
        graph.hrt,
        known=graph.known,
        nan="worst",
        dims=3,
    )
    return ranks, table.longest


def bytes_sent(rank: int) -> list[int]:
    """Count the bytes of collectives, for tables of two sizes."""
    totals, reduce = [], dist.all_reduce
    for count in (200, 2_000):
        seen = []

        def counted(values: torch.Tensor, seen: list[int] = seen, **options: Any) -> Any:
            seen.append(values.numel() * values.element_size())
            return reduce(values, **options)

        dist.all_reduce = counted
        step, table = count // 4, torch.ones(count, 8)
        shard = Shard(table[rank * step : (rank + 1) * step], start=rank * step, total_rows=count)
        joint(kgfast.rank, kgfast.DistMult(shard, torch.ones(RELATIONS, 8)), example().hrt)
        totals.append(sum(seen))
    return totals


def errors_of(rank: int) -> dict[str, Exception]:
    """Return the errors of calls in which one process is wrong."""
    graph = example()
    entity, relation = tables_of("DistMult")
    first, last = ((0, 50), (50, 97))[rank]
    found: dict[str, Exception] = {}

    def attempt(
        name: str,
        *,
        rows: torch.Tensor = entity[first:last],
        start: int = first,
        total: int = N,
        hrt: Any = graph.hrt,
        own: torch.Tensor = relation,
        **options: Any,
    ) -> None:
        model = kgfast.DistMult(Shard(rows, start=start, total_rows=total), own)
        try:
            joint(kgfast.rank, model, hrt, timeout=20, **options)
        except Exception as error:
            found[name] = error

    attempt("dtype", rows=entity[first:last].to(torch.float32 if rank == 0 else torch.float16))
    width = 8 if rank == 0 else 6
    attempt("width", rows=entity[first:last, :width], own=relation[:, :width])
    attempt("relations", own=relation + rank)
    attempt("triples", hrt=graph.hrt[: 40 - rank])
    attempt("nan=", nan="worst" if rank else "error")
    attempt("overlap", rows=entity[40:97] if rank else entity[:50], start=40 * rank)
    attempt("gap", rows=entity[60:97] if rank else entity[:50], start=60 * rank)
    broken = entity.clone()
    broken[60] = torch.nan
    hrt = graph.hrt[(graph.hrt[:, ::2] != 60).all(1)]
    attempt("nan", rows=broken[first:last], hrt=hrt)
    attempt("id", hrt=graph.hrt if rank else torch.tensor([[N, 0, 0]]))
    model = kgfast.DistMult(Shard(entity[first:last], start=first, total_rows=N), relation)
    try:
        many = kgfast.KnownTriples([(0, 0, tail) for tail in range(N - 1)])
        joint(kgfast.topk, model, heads=0, relations=0, k=3, known=many, timeout=20)
    except ValueError as error:
        found["full"] = error
    try:  # another function
        if rank:
            joint(kgfast.topk, model, heads=0, relations=0, k=3, timeout=20)
        else:
            joint(kgfast.rank, model, graph.hrt, timeout=20)
    except ValueError as error:
        found["function"] = error
    return found


def shuffled(seed: int) -> Tensor:
    """Return the entities of DistMult in another order."""
    generator = torch.Generator().manual_seed(seed)
    return tables_of("DistMult")[0][torch.randperm(N, generator=generator)]


# Calls that fail in one process before it meets the others: function, and what is wrong with it.
EARLY: dict[str, tuple[str, dict[str, Any]]] = {
    "misspelt": ("rank", {"batchsize": 16}),
    "no timeout": ("rank", {"timeout": 0}),
    "k past the table": ("topk", {"k": 98}),
    "a device that is not there": ("train", {"device": "cuda:99"}),
}


def early_failures(rank: int) -> list[tuple[Any, Any]]:
    """Return the ends of calls that fail in process 1 alone, and of the call after each.

    The calls differ in nothing but the rows of the table, which no digest compares.
    """
    graph, (first, last) = example(), ((0, 50), (50, 97))[rank]
    seeds = iter(range(2 * len(EARLY)))

    def call(what: str, options: dict[str, Any]) -> Any:
        table = shuffled(next(seeds))[first:last]
        own: dict[str, Any] = {
            "model": kgfast.DistMult(
                Shard(table, start=first, total_rows=N), tables_of("DistMult")[1]
            ),
            "timeout": 20,
        }
        if what == "rank":
            return joint(kgfast.rank, **(own | {"triples": graph.hrt} | options))
        if what == "topk":
            asked = {"heads": [1, 2], "relations": 0, "k": 3}
            return joint(kgfast.topk, **(own | asked | options))
        values = {"dataset": {"name": "synthetic"}, "model": {"name": "rotate", "base_dim": 8}}
        limits = {"train": {"steps": 1}, "optim": {"lr": 0.1}}
        return Trainer(Config.from_dict(values | limits | options), progress=False)

    found = []
    for what, options in EARLY.values():
        try:
            came: Any = call(what, options if rank else {})
        except Exception as error:
            came = error
        found.append((came, call("rank", {})))
    return found


def late(rank: int) -> list[Any]:
    """Call in process 1 when process 0 has given up, then once more in both."""
    graph, found = example(), []
    span = ((0, 50), (50, 97))[rank]
    for seconds in (2.5 * rank, 0):
        time.sleep(seconds)
        try:
            model = model_of("DistMult", span)
            found.append(
                joint(kgfast.rank, model, graph.hrt, timeout=30 if seconds or found else 1)
            )
        except RuntimeError as error:
            found.append(error)
    return found


def without_one(how: str, rank: int) -> None:
    """Rank with a process that goes away in the middle of a batch."""
    graph, model = example(), model_of("RotatE", [(0, 30), (30, 60), (60, 97)][rank])
    if rank == 1:  # leaves in the middle of a batch
        queries, calls = type(model).queries, []

        def leave(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(None)
            if len(calls) > 1:
                time.sleep(0 if how == "lost" else 9)
                os._exit(3)
            return queries(self, *args, **options)

        type(model).queries = leave
    joint(kgfast.rank, model, graph.hrt, batch_size=8, timeout=4)


def given_of(kind: str) -> Any:
    """Make candidates for the example's queries."""
    hrt = example().hrt
    generator = torch.Generator().manual_seed(5)
    lists = torch.stack([torch.randperm(N, generator=generator)[:9] for _ in hrt])
    lists[3, 4:] = -1
    return {
        "constraints": kgfast.TypeConstraints.from_triples(hrt),
        "lists": lists,
        "by side": {"head": torch.tensor([3, 60, 5]), "tail": lists},
    }[kind]


def among_candidates(kinds: list[str], spans: list[tuple[int, int]], rank: int) -> list[Any]:
    """Rank and predict among candidates of each kind."""
    graph, model, found = example(), model_of("RotatE", spans[rank]), []
    heads, relations, _ = graph.hrt.T
    for kind in kinds:
        options: dict[str, Any] = {"known": graph.known, "candidate_ids": given_of(kind)}
        options |= {"batch_size": 16, "timeout": 30}
        found.append(joint(kgfast.rank, model, graph.hrt, **options))
        asked = {"heads": heads, "relations": relations, "k": 6, "pad": True}
        found.append(joint(kgfast.topk, model, **asked, **options))
    return found


def filtered_shards(spans: list[tuple[int, int]], rank: int) -> Any:
    """Rank and predict by RSCF, whose candidates have a factor of their own rows."""
    first, last = spans[rank]
    whole = kgfast.RSCF(model_of("RotatE"), seed=1)
    shard = Shard(whole.entity.detach()[first:last], start=first, total_rows=N)
    model, graph = whole.with_entity(shard), example()
    ranks = joint(kgfast.rank, model, graph.hrt, known=graph.known, timeout=30)
    return ranks, joint(kgfast.topk, model, heads=[1, 2], relations=0, k=5, timeout=30)
