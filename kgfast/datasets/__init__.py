"""Datasets: readers for the folder layouts in use, and a synthetic graph that needs no download."""

from kgfast.datasets.base import Dataset
from kgfast.datasets.readers import load
from kgfast.datasets.synthetic import SyntheticDataset, synthetic

__all__ = ["Dataset", "SyntheticDataset", "load", "synthetic"]
