"""Rank by Ray: one task a range of entities. `ray.init("auto")` serves a cluster."""

import numpy as np
import ray

import kgfast
from kgfast.distributed import count_range, merge


@ray.remote
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
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    there = [ray.put(triples), ray.put(known)]
    print(merge(ray.get([count.remote(span, *there) for span in spans]), known=known))
    ray.shutdown()
