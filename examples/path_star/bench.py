"""Memory and time of a head over ten million tokens, beside logits that are stored.

    python -m examples.path_star.bench              the sweep of the report, as it was
    python -m examples.path_star.bench --quick      a smoke test
    python -m examples.path_star.bench --all 40000  the best of the vocabulary for so many samples

Every row is measured in a process of its own: the peak beyond weight, gradients, optimizer states
and hidden states, and seconds of one call. Dense is torch with all logits: by formula, and measured
with as many samples as fit. Writes benchmarks/results/cpu-path-star.json; ``--all`` adds to it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import RowAdam
from kgfast.extras.heads import StreamedHead

from .gpt import GPT
from .train import CONFIG, Config, loss_of, read_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK = {"graph_d": 20, "graph_vocab_size": 3000, "n_embd": 8, "num_negatives": 50}
# samples of the whole vocabulary: for kgfast, and for torch, which stores all logits
TIMED, NAIVE = 1000, 32
STEP = 256  # positions of a step over the whole vocabulary


def lib(name: str) -> Any:
    """Import a module that the scripts of benchmarks/ share."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return import_module(f"lib.{name}")


def measured(work: Callable[[], Any]) -> dict[str, Any]:
    """Measure peak memory beyond the inputs, and seconds."""
    with lib("measure").PeakMemory("cpu") as peak:
        start, of_cpu = time.perf_counter(), time.process_time()
        work()
        seconds, of_cpu = time.perf_counter() - start, time.process_time() - of_cpu
    about = {"bytes": max(0, peak.bytes), "method": peak.method}
    return about | {"seconds": seconds, "cpu_seconds": of_cpu}


def _head(config: Config) -> StreamedHead:
    torch.manual_seed(config.seed)
    return StreamedHead(config.graph_vocab_size, config.n_embd, sparse=True)


def _hidden(config: Config, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, config.n_embd, generator=generator)


def best_of_all(config: Config, count: int) -> Iterator[dict[str, Any]]:
    """Time the best token and a draw over the whole vocabulary; compare the best with torch's."""
    head, hidden = _head(config), _hidden(config, count)
    head.greedy(hidden[:2])
    found: list[Tensor] = []
    row = measured(lambda: found.append(head.greedy(hidden)))
    logits = hidden[:8] @ head.weight.detach().T
    row["equals_dense"] = torch.equal(found[0][:8], logits.argmax(1))
    yield {"section": "greedy", "contender": "kgfast", "samples": count} | row
    if count <= TIMED:
        row = measured(lambda: head.sample(hidden, seed=0))
        yield {"section": "sample", "contender": "kgfast", "samples": count} | row


def best_of_nodes(config: Config, count: int) -> Iterator[dict[str, Any]]:
    """Time the best of the nodes in use, and all paths by a GPT, position by position."""
    star, model = config.star(), config.model()
    hidden, nodes, head = _hidden(config, count), star.nodes, model.head
    head.greedy(hidden[:2], candidate_ids=nodes)
    found: list[Tensor] = []
    row = measured(lambda: found.append(head.greedy(hidden, candidate_ids=nodes)))
    logits = hidden[:512] @ head.weight.detach()[nodes].T
    row["equals_dense"] = torch.equal(found[0][:512], nodes[logits.argmax(1)])
    about = {"contender": "kgfast", "samples": count, "candidates": len(nodes)}
    yield {"section": "greedy"} | about | row
    row = measured(lambda: head.sample(hidden, seed=0, candidate_ids=nodes))
    yield {"section": "sample"} | about | row
    contexts = star.paths(held_out=False)[:, :2]
    contexts = contexts[torch.arange(count) % len(contexts)]
    row = measured(lambda: _generate(model, contexts, star.length, nodes))
    yield {"section": "generate", "positions": star.length} | about | row


def _generate(model: GPT, contexts: Tensor, length: int, nodes: Tensor) -> Tensor:
    return model.generate(contexts, length, candidate_ids=nodes)


def step(config: Config, count: int, loss: str) -> Iterator[dict[str, Any]]:
    """Time the loss, the gradients and the optimizer's step on rows, after a first step."""
    config = Config.of(vars(config) | {"loss": loss})
    star, head = config.star(), _head(config)
    hidden, nodes = _hidden(config, count).requires_grad_(), star.nodes
    targets = nodes[torch.randint(len(nodes), (count,), generator=torch.Generator())]
    if loss != "full":
        optimizer = RowAdam(head.parameters())
        loss_of(head, hidden[:2], targets[:2], config, nodes, 0).backward()
        optimizer.step()
        head.zero_grad()
    row = measured(lambda: loss_of(head, hidden, targets, config, nodes, 1).backward())
    assert head.weight.grad is not None
    gradient = head.weight.grad
    kept = hidden.nbytes + (0 if gradient.is_sparse else gradient.nbytes)
    row["bytes"] = max(0, row["bytes"] - kept)
    if loss != "full":
        update = measured(optimizer.step)
        row["bytes"] = max(row["bytes"], update["bytes"])
        for name in ("seconds", "cpu_seconds"):
            row[name] += update[name]
    if loss == "nodes":
        row["candidates"] = len(nodes)
    if loss == "sampled":
        row["negatives"] = config.num_negatives
    yield {"section": f"step, {loss}", "contender": "kgfast", "samples": count} | row


def dense(config: Config, count: int, candidates: int | None) -> Iterator[dict[str, Any]]:
    """Time torch with all logits and their softmax, from which a model's generate() draws."""
    head, hidden = _head(config), _hidden(config, count)
    rows = head.weight.detach()[:candidates]
    row = measured(lambda: (hidden @ rows.T).softmax(1).argmax(1))
    about = {"section": "greedy", "contender": "dense", "samples": count}
    if candidates is not None:
        about["candidates"] = candidates
    yield about | row


def run(job: Callable[..., Iterator[dict[str, Any]]], *arguments: Any) -> list[dict[str, Any]]:
    """Return the rows of a job, which a process of its own runs."""
    return list(job(*arguments))


def jobs(config: Config, everything: int, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Yield the jobs that are measured, with their arguments."""
    if options.all:
        yield best_of_all, config, min(options.all, everything)
        return
    timed, naive = min(TIMED, everything), min(NAIVE, everything)
    nodes = config.graph_d * (config.graph_l - 1) + 1
    yield best_of_all, config, timed
    yield best_of_nodes, config, everything
    yield step, config, everything, "nodes"
    yield step, config, everything, "sampled"
    yield step, config, min(STEP, everything), "full"
    yield dense, config, naive, None
    yield dense, config, everything, nodes


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tiny star: a smoke test")
    parser.add_argument("--all", type=int, metavar="N", help="only this, one position of N samples")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.all is not None and options.all < 1:
        parser.error(f"--all must be at least 1; got {options.all}")
    config = read_config(CONFIG, [f"{k}={v}" for k, v in QUICK.items()] if options.quick else [])
    path = options.json
    if path is None and not options.quick:
        path = BENCHMARKS / "results" / "cpu-path-star.json"
    everything = round(config.graph_d * (1 - config.graph_holdout_percentage))
    everything *= config.graph_replicas
    about = lib("machine").facts("cpu")
    about["command"] = about["command"].replace(
        "python benchmarks/bench.py", "python -m examples.path_star.bench"
    )
    about |= {"vocabulary": config.graph_vocab_size, "dim": config.n_embd}
    rows: list[dict[str, Any]] = []
    if options.all and path is not None and path.exists():
        earlier = lib("results").read_rows(path)
        rows += [row for row in earlier if not _is_best_of_all(row, options.all)]
    for job in jobs(config, everything, options):
        for row in lib("measure").in_child(run, *job):
            count = row.get("candidates", config.graph_vocab_size)
            row["dense_bytes"] = 4 * row["samples"] * count  # bytes of the logits alone
            rows.append(row | about)
            _print(row)
        if path is not None:
            lib("results").write_json(path, {"rows": rows})
    return 0 if all(row.get("equals_dense", True) for row in rows) else 1


def _is_best_of_all(row: Mapping[str, Any], count: int) -> bool:
    """Return True if ``--all`` measures this row anew."""
    is_whole = row["section"] in ("greedy", "sample") and "candidates" not in row
    return is_whole and row["contender"] == "kgfast" and row["samples"] == count


def _print(row: Mapping[str, Any]) -> None:
    of = f"{row['candidates']:,} nodes" if "candidates" in row else "the vocabulary"
    print(
        f"{row['section']:14} {row['contender']:7} {row['samples']:7,} samples, {of}: "
        f"{row['seconds']:8.2f} s, {row['cpu_seconds']:8.2f} CPU s   "
        f"{row['bytes'] / 2**20:10,.1f} MiB   "
        f"logits {row['dense_bytes'] / 2**20:12,.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
