"""Rank by Dask: one task a range of entities. `Client(ADDRESS)` serves a cluster."""

import numpy as np
from dask.distributed import Client

import kgfast
from kgfast.distributed import count_range, merge


def count(span, triples, known):
    """Count a range of entities."""
    entity = np.load("entity.npy", mmap_mode="r")
    model = kgfast.RotatE(entity, np.load("relation.npy"))
    return count_range(model, triples, *span, known=known)


if __name__ == "__main__":
    triples = np.load("triples.npy")
    known = kgfast.KnownTriples(np.load("known.npy"))
    total, parts = len(np.load("entity.npy", mmap_mode="r")), 8
    spans = [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        there = client.scatter(known, broadcast=True)
        counts = client.map(count, spans, triples=triples, known=there)
        print(merge(client.gather(counts), known=known))
