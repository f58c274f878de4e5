"""Models of other libraries as folders of tables for kgfast: ``kgfast convert``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgfast.adapters.dglke import load_dglke
from kgfast.adapters.export import PLAIN
from kgfast.adapters.foreign import NamedModel, Options, read_options
from kgfast.adapters.libkge_checkpoints import read_libkge
from kgfast.adapters.official import load_official
from kgfast.datasets import load as load_data
from kgfast.models import Reciprocal, is_saved, save

__all__ = ["FORMATS", "convert"]


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    data: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write another library's trained model as a folder like that of :func:`kgfast.save`.

    :func:`kgfast.load_run` reads the folder, and so does ``kgfast evaluate OUT --data DIR``.

    Parameters
    ----------
    source
        A run of the official RotatE code, the folder of ``dglke_train``, or a checkpoint or package
        of LibKGE (a file).
    out
        A folder that is empty or not there yet.
    format : {"official", "dglke", "libkge"}, optional
        The format of the source; detected from the files by default.
    data : path, optional
        The data, for the names of rows.

    Returns
    -------
    list of Path
        The written files.

    Raises
    ------
    FileNotFoundError
        If the source is not there, or lacks a file.
    ValueError
        If the source cannot be read, has a model of more than two tables, or has more or fewer rows
        than the data have names; if ``out`` is not empty. Nothing is written then.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    chosen = format or _format_of(source)
    if chosen not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {chosen!r}")
    model, names = FORMATS[chosen](source)
    inner = model.model if isinstance(model, Reciprocal) else model
    if not isinstance(inner, PLAIN):
        raise ValueError(
            f"{source}: a folder of tables holds {', '.join(kind.__name__ for kind in PLAIN)}; "
            f"this is a {type(inner).__name__}: rank it in Python"
        )
    if data is not None:
        dataset, own = load_data(data), names
        names = dataset.entities, dataset.relations
        for what, mine, given in zip(("entities", "relations"), own, names, strict=True):
            if mine is not None and list(mine) != list(given):
                raise ValueError(f"{data}: {what} have other ids than in {source}: leave data out")
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        rows = getattr(model, f"num_{what}")
        if vocabulary is not None and len(vocabulary) != rows:
            whose = source if data is None else data
            raise ValueError(
                f"{whose}: {len(vocabulary):,} names of {what}, but {source} has {rows:,} rows: "
                f"they are not those of its tables"
            )
    save(model, out, entities=names[0], relations=names[1])
    return sorted(Path(out).iterdir())


class _Either(Options):
    model_name: Any = None  # only DGL-KE has this key


def _format_of(source: Path) -> str:
    if source.is_file():
        return "libkge"
    path = source / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{source}: config.json (official code, DGL-KE) is not there; of LibKGE name the "
            "checkpoint file"
        )
    if is_saved(source):
        raise ValueError(f"{source} is a folder of tables already: kgfast evaluate reads it")
    return "official" if read_options(path, "", _Either).model_name is None else "dglke"


FORMATS: dict[str, Callable[[Path], NamedModel]] = {
    "official": lambda source: NamedModel(load_official(source)),
    "dglke": lambda source: NamedModel(load_dglke(source)),
    "libkge": read_libkge,
}
