"""Datasets: downloads, readers for common layouts, and a synthetic graph that needs no files.

Names are imported when they are first used: a ranking needs the class of a dataset only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgfast.datasets.dataset import Dataset

if TYPE_CHECKING:
    from kgfast.datasets.downloads import download as download
    from kgfast.datasets.labelled import with_labels as with_labels
    from kgfast.datasets.readers import load as load
    from kgfast.datasets.readers import load_negatives as load_negatives
    from kgfast.datasets.synthesis import SyntheticDataset as SyntheticDataset
    from kgfast.datasets.synthesis import synthetic as synthetic

_HOMES = {
    "downloads": ("download",),
    "labelled": ("with_labels",),
    "readers": ("load", "load_negatives"),
    "synthesis": ("SyntheticDataset", "synthetic"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["Dataset", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
