"""That processes train the same run, and in a way that can be shared out."""

import torch

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.eval.meeting import Meeting
from kgfast.storage import digest
from kgfast.training.config import Config
from kgfast.training.run_graph import RunGraph

# What each process may have of its own, of what may change when a run is resumed.
_OWN = ("device", "threads", "dataset.root", "train.out_dir", "train.table_folder")


def check_agreement(
    meeting: Meeting, config: Config, dataset: Dataset, device: torch.device
) -> None:
    """That all processes have the same config, names, triples and kind of device.

    Raises
    ------
    ValueError
        In all processes, with the first that differs; for a model that cannot be shared out.
    """
    meeting.together(lambda: _check_trainable(config))
    graph = RunGraph(dataset)
    facts = {key: str(value) for key, value in config.flat().items() if key not in _OWN}
    facts |= {"the names of entities and relations": graph.rows, "device": device.type}
    facts |= {f"the triples of {name}": digest(graph.splits[name]) for name in SPLITS}
    check_same(meeting, facts)


def check_same(meeting: Meeting, facts: dict[str, str]) -> None:
    """Check that all processes have the same facts.

    Raises
    ------
    ValueError
        In all processes, with the first that differs.
    """
    try:
        meeting.agree(facts)
    except ValueError as error:
        raise ValueError(
            f"{error}; all of a run must be started with the same command and the same data"
        ) from None


def _check_trainable(config: Config) -> None:
    if config.distributed.tables == "replicated":
        return
    if config.train.mode != "negative":
        raise ValueError(
            f"train.mode: {config.train.mode} scores all entities, which no process has with "
            "distributed.tables=sharded; use train.mode=negative, or distributed.tables=replicated"
        )
    if config.model.name == "cp":
        raise ValueError(
            "model.name: cp is ranked by halves of its rows, which shards do not hand out; use "
            "distributed.tables=replicated"
        )
    if config.med is not None and config.med.crop == "split":
        raise ValueError(
            "med.crop: split is ranked by parts of rows, which shards do not hand out; use "
            "distributed.tables=replicated"
        )
    filters = config.model.use_rscf and config.model.rscf_relation_transform is not False
    if filters and config.model.name in ("rotate", "transe"):
        raise ValueError(
            "model.use_rscf: filtered relations are ranked among all entities, which no process "
            "has with distributed.tables=sharded; use distributed.tables=replicated, or "
            "model.rscf_relation_transform=false"
        )
