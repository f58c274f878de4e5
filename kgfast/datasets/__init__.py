"""Datasets: downloads, readers for common layouts, and a synthetic graph that needs no files."""

from kgfast.datasets.dataset import Dataset
from kgfast.datasets.downloads import download
from kgfast.datasets.labelled import with_labels
from kgfast.datasets.readers import load, load_negatives
from kgfast.datasets.synthetic import SyntheticDataset, synthetic

__all__ = [
    "Dataset",
    "SyntheticDataset",
    "download",
    "load",
    "load_negatives",
    "synthetic",
    "with_labels",
]
