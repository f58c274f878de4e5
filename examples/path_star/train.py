"""Train on the paths of a star and evaluate every sample, each position in one call.

python -m examples.path_star.train                            the sweep of the report, as it was
python -m examples.path_star.train --set graph_d=250 --set graph_vocab_size=100000
python -m examples.path_star.train --set loss=sampled --set max_batches=100
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from torch import Tensor

from kgfast import RowAdam
from kgfast.extras.heads import StreamedHead

from .gpt import GPT, Shape
from .star import Star

CONFIG = Path(__file__).with_name("config.yaml")
Loss = Literal["nodes", "sampled", "full"]


@dataclass(frozen=True)
class Config:
    """The keys of config.yaml."""

    graph_d: int
    graph_l: int
    graph_vocab_size: int
    graph_holdout_percentage: float
    graph_replicas: int
    n_layer: int
    n_head: int
    n_embd: int
    loss: Loss
    num_negatives: int
    batch_size: int
    max_batches: int
    learning_rate: float
    seed: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Config":
        """Return the config of checked values: every key, of its type, and no other.

        Raises
        ------
        ValueError
            If a key or a value is wrong; the message names the key.
        """
        types = {field.name: field.type for field in fields(cls)}
        for name in values.keys() ^ types.keys():
            raise ValueError(f"{name}: {'no such key' if name in values else 'missing'}")
        for name, value in values.items():
            if name == "loss":
                if value not in get_args(Loss):
                    raise ValueError(f"loss must be one of {', '.join(get_args(Loss))}")
            elif isinstance(value, bool) or not isinstance(
                value, int if types[name] is int else int | float
            ):
                raise ValueError(f"{name} must be a number of its kind; got {value!r}")
            elif name not in ("graph_holdout_percentage", "max_batches", "seed") and value <= 0:
                raise ValueError(f"{name} must be above 0; got {value}")
        return cls(**values)

    def star(self) -> Star:
        """Make the graph."""
        return Star.make(
            self.graph_d,
            self.graph_l,
            self.graph_vocab_size,
            self.graph_holdout_percentage,
            self.seed,
        )

    def model(self) -> GPT:
        """Make the GPT with its initial weights."""
        torch.manual_seed(self.seed)
        length = 1 + self.graph_l
        return GPT(Shape(self.graph_vocab_size, length, self.n_layer, self.n_head, self.n_embd))


def read_config(path: Path, changes: list[str]) -> Config:
    """Read a config file; ``key=value`` texts replace its values."""
    values = yaml.safe_load(path.read_text())
    for change in changes:
        key, _, value = change.partition("=")
        values[key] = yaml.safe_load(value)
    return Config.of(values)


def batches(star: Star, config: Config) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of each batch: paths and edges in turns, drawn by its number."""
    paths, edges = star.paths(held_out=False), star.edges()
    half, generator = max(1, config.batch_size // 2), torch.Generator()
    for number in range(config.max_batches):
        if number % 2 == 0:
            generator.manual_seed((config.seed << 32) + number // 2)
        samples = edges if number % 2 else paths
        rows = samples[torch.randint(len(samples), (half,), generator=generator)]
        targets = rows[:, 1:]
        yield rows[:, :-1], targets.masked_fill(targets == star.asks, -100)


def loss_of(
    head: StreamedHead, hidden: Tensor, targets: Tensor, config: Config, pool: Tensor, seed: int
) -> Tensor:
    """Return the loss that the config names."""
    if config.loss == "sampled":
        return head.sampled_loss(hidden, targets, config.num_negatives, seed=seed)
    ids = pool if config.loss == "nodes" else None
    return head.loss(hidden, targets, candidate_ids=ids)


def train(model: GPT, star: Star, config: Config) -> Iterator[float]:
    """Train; yield the loss of each batch."""
    optimizer = RowAdam(model.parameters(), config.learning_rate)
    pool = star.nodes
    for number, (inputs, targets) in enumerate(batches(star, config)):
        optimizer.zero_grad()
        hidden = model(inputs)
        leaf = hidden.detach().requires_grad_()
        loss = loss_of(model.head, leaf, targets, config, pool, number)
        # In two passes: autograd would add the rows of the inputs to a copy of the head's gradient.
        loss.backward()
        hidden.backward(leaf.grad)
        optimizer.step()
        yield float(loss.detach())


def evaluate(model: GPT, star: Star, replicas: int, *, held_out: bool) -> float:
    """Generate all paths in one call; return the share of exact ones."""
    samples = star.paths(held_out=held_out).repeat_interleave(replicas, dim=0)
    if not len(samples):
        return float("nan")
    found = model.generate(samples[:, :2], star.length, candidate_ids=star.nodes)
    return float((found == samples).all(1).double().mean())


def learned(model: GPT, star: Star, config: Config) -> list[dict[str, float]]:
    """Train and print; return the mean loss of every hundred batches, with CPU seconds."""
    start, began = time.perf_counter(), time.process_time()
    curve, recent = [], []
    for number, loss in enumerate(train(model, star, config), 1):
        recent.append(loss)
        if number % 100 and number < config.max_batches:
            continue
        mean, elapsed = sum(recent) / len(recent), time.perf_counter() - start
        curve.append({"batch": number, "loss": mean, "cpu_seconds": time.process_time() - began})
        print(f"batch {number:6,}   loss {mean:8.4f}   {elapsed:6.1f} s", flush=True)
        recent = []
    return curve


def write_curve(path: Path, row: dict[str, Any]) -> None:
    """Write a results file, with the machine, versions and command."""
    from .bench import lib

    about = lib("machine").facts("cpu")
    about["command"] = about["command"].replace(
        "python benchmarks/train.py", "python -m examples.path_star.train"
    )
    lib("results").write_json(path, {"rows": [row | about]})


def main(arguments: list[str] | None = None) -> int:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write losses and shares")
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config, options.set)
        star = config.star()
    except ValueError as error:
        parser.error(str(error))
    model = config.model()
    print(f"{len(star.nodes):,} nodes, {star.vocabulary:,} tokens x {config.n_embd}")
    curve, shares = learned(model, star, config), []
    for name, held_out, replicas in (
        ("training", False, config.graph_replicas),
        ("held out", True, 1),
    ):
        start = time.perf_counter()
        share = evaluate(model, star, replicas, held_out=held_out)
        count = replicas * len(star.paths(held_out=held_out))
        elapsed = time.perf_counter() - start
        print(f"{name}: {share:.2%} of {count:,} paths are right   {elapsed:.1f} s")
        if count:
            shares.append({"of": name, "paths": count, "right": share})
    if options.json is not None:
        write_curve(options.json, {"config": vars(config), "curve": curve, "shares": shares})
    return 0


if __name__ == "__main__":
    sys.exit(main())
