"""The evaluation that kgfast replaces: its bytes by formula, and one batch of it in plain torch.

The formulas count the float32 temporaries of the scores that live at the same time, as the sources
of the libraries have them, for B queries, E entities, d complex dimensions and K known triples.

    one tensor  [B, E, d] of complex numbers                                       8 B E d
    official    gathered rows 2, real and imaginary part 2, stacked 2, moduli 1   28 B E d
    LibKGE      the same without the gather                                       20 B E d
    PyKEEN      one complex tensor, and three masks [B, K] for the filter          8 B E d + 3 B K
"""

from typing import Any

import torch
from torch import Tensor

from lib.measure import PeakMemory, Stopwatch

BATCH = 128  # queries, as in the reports of users who ran out of memory
FLOATS_PER_ELEMENT = {"tensor": 2, "official": 7, "libkge": 5, "pykeen": 2}
LIBRARIES = {"official": "official RotatE", "libkge": "LibKGE", "pykeen": "PyKEEN"}


def formula_bytes(kind: str, batch: int, entities: int, dim: int, known: int) -> int:
    """Return the bytes that a library's evaluation holds at its peak, or of the one tensor."""
    scores = 4 * FLOATS_PER_ELEMENT[kind] * batch * entities * dim
    return scores + (3 * batch * known if kind == "pykeen" else 0)


def batch_that_fits(entities: int, dim: int, cap: float) -> int:
    """Return the largest power of two up to BATCH whose official formula fits the cap, or 0."""
    batch = BATCH
    while batch and formula_bytes("official", batch, entities, dim, 0) > cap:
        batch //= 2
    return batch


def measure(job: Any, batch: int) -> dict[str, Any]:
    """Return peak memory and seconds of one batch of tails, after a batch of one query."""
    graph = job.graph()
    model, known, test = job.model(graph), graph.known(), graph.test.hrt
    triples = test[torch.arange(batch) % len(test)].to(job.device)  # tiny test sets repeat
    with torch.no_grad():
        _official_ranks(model, triples[:1], known)
        stopwatch = Stopwatch(job.device)
        with PeakMemory(job.device) as peak:
            ranks, seconds = stopwatch.timed(lambda: _official_ranks(model, triples, known))
    return {
        "batch": batch,
        "bytes": peak.bytes,
        "method": peak.method,
        "seconds": seconds,
        "ranks": ranks,
    }


def _official_ranks(model: Any, triples: Tensor, known: Any) -> list[int]:
    """Rank tails, filtered, with the memory traffic of the official code's test step.

    Its data loader, which asks a Python set for every entity of every query, is left out: the ids
    and biases that it would send are made from the CSR index. Its ``stacked.norm(dim=0)`` is
    ``hypot`` here: the same bytes, but more than 10 times as fast on a CPU (measured with torch
    2.13). So the time is a lower bound.
    """
    heads, relations, tails = triples.T
    entity = model.entity
    batch, entities = len(triples), len(entity)
    ids = torch.arange(entities, device=entity.device).repeat(batch, 1)  # [B, E]
    bias = torch.zeros(batch, entities, device=entity.device)  # [B, E]
    indptr, indices = known.exclude(heads, relations, "tail")
    rows = torch.repeat_interleave(indptr.diff())
    filtered = indices != tails[rows]
    rows, indices = rows[filtered], indices[filtered]
    ids[rows, indices] = tails[rows]  # a known answer becomes a copy of the target, minus 1
    bias[rows, indices] = -1.0

    turned = model.queries(heads, relations, "tail")[:, None, :]  # [B, 1, 2d]
    rotated_re, rotated_im = turned.chunk(2, dim=2)
    gathered = entity.index_select(0, ids.view(-1)).view(batch, entities, -1)  # [B, E, 2d]
    re_tail, im_tail = gathered.chunk(2, dim=2)
    re = rotated_re - re_tail  # [B, E, d]
    im = rotated_im - im_tail
    stacked = torch.stack([re, im])  # [2, B, E, d]
    moduli = torch.hypot(stacked[0], stacked[1])  # [B, E, d]
    scores = bias - moduli.sum(dim=2)
    order = scores.argsort(dim=1, descending=True)
    return [int((order[i] == tails[i]).nonzero()) + 1 for i in range(batch)]
