"""Writes libkge_recorded.json.gz: what LibKGE's own job traced of a few models on a small graph.

KGFAST_LIBKGE=CHECKOUT python tests/support/libkge_record.py
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from support import libkge

RECORDED = Path(__file__).with_name("libkge_recorded.json.gz")
MODELS = {
    "rotate": {},
    "reciprocal complex": {},
}


def main() -> None:
    """Run LibKGE, keep what it traced."""
    libkge.checkout()
    folder = Path(tempfile.mkdtemp())
    graph = libkge.graph_of(libkge.write_graph(folder, (30, 3)))
    splits = {name: graph.split(name).tolist() for name in ("train", "valid", "test")}
    content: dict[str, Any] = {"splits": splits, "models": {}}
    for name, options in MODELS.items():
        model = libkge.model_of(name, options, graph, folder, dim=8)
        prefix = "_base_model." if name.startswith("reciprocal") else ""
        state = model.state_dict()
        own: dict[str, Any] = {
            what: state[f"{prefix}_{what}_embedder._embeddings.weight"].tolist()
            for what in ("entity", "relation")
        }
        own["traces"] = {
            ties: libkge.traced(
                model,
                "EntityRankingJob",
                graph,
                folder,
                libkge.job_options(ties, per=("head_and_tail",)),
            )
            for ties in ("exact", "a wide band")
        }
        content["models"][name] = own
    RECORDED.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
