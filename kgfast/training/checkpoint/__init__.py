"""Checkpoints of a run: the format of a file, the folder, the graph and the state."""

from kgfast.training.checkpoint.format import VERSION, blocks, load, load_meta, save

__all__ = ["VERSION", "blocks", "load", "load_meta", "save"]
