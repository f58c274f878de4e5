"""Tables for other programs, and the packages that are needed for them alone."""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgfast.whole_files import write_whole

if TYPE_CHECKING:
    from pandas import DataFrame


def needed(package: str, what: str) -> Any:
    """A package that only ``what`` needs.

    Raises
    ------
    ImportError
        If it is not installed: says what needs it.

    Examples
    --------
    >>> needed("no_such_package", "Ranks.to_frame()")
    Traceback (most recent call last):
    ...
    ImportError: Ranks.to_frame() needs no_such_package: pip install no_such_package
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, and lacks something itself
            raise
        raise ImportError(f"{what} needs {package}: pip install {package}") from None


def write_parquet(frame: "DataFrame", path: str | os.PathLike[str], what: str) -> Path:
    """Write a table with its index to a Parquet file, whole or not at all.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    OSError
        If the file cannot be written.
    """
    needed("pyarrow", what)
    return write_whole(path, lambda beside: frame.to_parquet(beside, engine="pyarrow"))
