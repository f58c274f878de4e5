"""What processes do that rank together; tests compare it with what one does."""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import kgfast
from kgfast import distributed
from kgfast.tables import Shard
from support.shared_out import DIM, RELATIONS, FileTable, N, example, model_of, tables_of

CANDIDATES = [3, 5, 50, 96, 20]


def results_of(name: str, spans: list[tuple[int, int]], rank: int) -> list[Any]:
    """What one process finds."""
    graph, model = example(), model_of(name, spans[rank])
    options: dict[str, Any] = {"known": graph.known, "timeout": 30}
    heads, relations, tails = graph.hrt.T
    return [
        distributed.rank(model, graph.hrt, batch_size=16, **options),
        distributed.rank(model, graph.hrt[:9], candidate_ids=CANDIDATES, **options),
        distributed.topk(model, heads=heads, relations=relations, k=7, batch_size=16, **options),
        distributed.topk(model, tails=tails[:3], relations=1, k=97, pad=True, **options),
    ]


def tables_with_nan() -> tuple[Tensor, Tensor]:
    """Those of RotatE, in which two rows are not finite."""
    entity, relation = tables_of("RotatE")
    entity[[4, 60]] = torch.nan
    return entity, relation


def of_files(rank: int) -> Any:
    """Ranks of shards that are read in blocks, and the longest of these."""
    from kgfast.distributed import held

    held._BLOCK_BYTES = 10 * 8 * DIM
    entity, relation = tables_with_nan()
    graph = example()
    first, last = ((0, 33), (33, 97))[rank]
    table = FileTable(entity[first:last])
    shard = Shard(table, start=first, total_rows=N)
    ranks = distributed.rank(
        kgfast.RotatE(shard, relation), graph.hrt, known=graph.known, nan="worst", dims=3
    )
    return ranks, table.longest


def bytes_sent(rank: int) -> list[int]:
    """What goes through collectives, of tables of two sizes."""
    totals, reduce = [], dist.all_reduce
    for count in (200, 2_000):
        seen = []

        def counted(values: torch.Tensor, seen: list[int] = seen, **options: Any) -> Any:
            seen.append(values.numel() * values.element_size())
            return reduce(values, **options)

        dist.all_reduce = counted
        step, table = count // 4, torch.ones(count, 8)
        shard = Shard(table[rank * step : (rank + 1) * step], start=rank * step, total_rows=count)
        distributed.rank(kgfast.DistMult(shard, torch.ones(RELATIONS, 8)), example().hrt)
        totals.append(sum(seen))
    return totals


def errors_of(rank: int) -> dict[str, Exception]:
    """What comes of what is wrong in one process."""
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
            distributed.rank(model, hrt, timeout=20, **options)
        except Exception as error:
            found[name] = error

    names = tuple(
        kgfast.Vocabulary([f"{kind}{i + rank * (kind == 'e')}" for i in range(count)])
        for kind, count in (("e", N), ("r", RELATIONS))
    )
    attempt("dtype", rows=entity[first:last].to(torch.float32 if rank == 0 else torch.float16))
    width = 8 if rank == 0 else 6
    attempt("width", rows=entity[first:last, :width], own=relation[:, :width])
    attempt("rows", total=N + rank)
    attempt("relations", own=relation + rank)
    attempt("triples", hrt=graph.hrt[: 40 - rank])
    attempt("vocabulary", vocabulary=names)
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
        distributed.topk(model, heads=0, relations=0, k=3, known=many, timeout=20)
    except ValueError as error:
        found["full"] = error
    return found


def without_one(how: str, rank: int) -> None:
    """Rank with a process that goes away in the middle of a batch."""
    graph, model = example(), model_of("RotatE", [(0, 30), (30, 60), (60, 97)][rank])
    if rank == 1:  # it leaves in the middle of a batch
        queries, calls = type(model).queries, []

        def leave(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(None)
            if len(calls) > 1:
                time.sleep(0 if how == "lost" else 9)
                os._exit(3)
            return queries(self, *args, **options)

        type(model).queries = leave
    distributed.rank(model, graph.hrt, batch_size=8, timeout=4)
