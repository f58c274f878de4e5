"""Rank by Spark: one row a range of entities.

Spark starts the Python that PYSPARK_PYTHON names, which needs kgfast, pandas and pyarrow. Every
worker reads the four files.
"""

import pickle

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

import kgfast
from kgfast.distributed import count_range, merge


def count(frames):
    """Count the ranges of entities in the rows of frames."""
    triples, known = np.load("triples.npy"), kgfast.KnownTriples(np.load("known.npy"))
    entity = np.load("entity.npy", mmap_mode="r")
    model = kgfast.RotatE(entity, np.load("relation.npy"))
    for frame in frames:
        spans = zip(frame.start.tolist(), frame.stop.tolist(), strict=True)
        counts = [count_range(model, triples, *span, known=known) for span in spans]
        yield pd.DataFrame({"counts": [pickle.dumps(one) for one in counts]})


if __name__ == "__main__":
    total, parts = len(np.load("entity.npy", mmap_mode="r")), 8
    spans = [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    table = spark.createDataFrame(spans, "start long, stop long").repartition(parts)
    rows = table.mapInPandas(count, "counts binary").collect()
    known = kgfast.KnownTriples(np.load("known.npy"))
    counts = [pickle.loads(row.counts) for row in rows]  # noqa: S301, the workers' own
    print(merge(counts, known=known))
    spark.stop()
