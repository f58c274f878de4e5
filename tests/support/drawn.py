"""Digests of values that are drawn from a seed: graphs, batches, negatives, noise, samples.

As a script, print the digests, so that a test compares processes with other vector instructions.
Fresh tables of models are not among them: torch rounds these by its instruction set
(docs/reference/stability.md).
"""

import hashlib
from typing import Any

import torch

import kgfast
from kgfast.datasets import synthetic
from kgfast.eval.intervals import draws
from kgfast.extras.heads.sampling import drawn_outputs, gumbel
from kgfast.training.data import Batches, Negatives


def digests() -> dict[str, str]:
    """Return a digest of each kind of drawn values."""
    found: dict[str, list[Any]] = {}
    for sizes in ((), (2_000, 11, 5_000, 250, 250), (500, 40, 3_000, 100, 100)):
        graph = synthetic(*sizes)
        found[f"graph {sizes}"] = [graph.train.hrt, graph.valid.hrt, graph.test.hrt]
        found[f"planted {sizes}"] = [*graph.planted(70), graph.growth.correlation]
    hrt, known = graph.train.hrt, kgfast.KnownTriples(graph.train)
    for shared in (False, True):
        batches = Batches(hrt, 64, seed=0)
        negatives = Negatives(500, 32, 0, shared=shared, known=known)
        drawn = [negatives.draw(batches.batch(number)) for number in range(20)]
        found[f"negatives {shared}"] = [it for both in drawn for it in both if it is not None]
    queries = Batches(hrt, 64, seed=0, distinct=True)
    found["queries"] = [queries.batch(number).anchors for number in range(20)]
    rows = torch.arange(200)
    found["gumbel"] = [gumbel(0, rows[:, None], rows)]
    found["outputs"] = [*drawn_outputs(rows, 10_000, 500, seed=0)]
    found["bootstrap"] = [*draws(1_000, 10, seed=0)]
    return {name: _digest(values) for name, values in found.items()}


def _digest(values: list[Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for it in values:
        digest.update(torch.as_tensor(it).contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(digests())
