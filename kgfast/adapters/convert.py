"""Models of other libraries as folders of tables for kgfast: ``kgfast convert``."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kgfast.adapters.dglke import load_dglke
from kgfast.adapters.export import PLAIN
from kgfast.adapters.foreign import NamedModel, read_options
from kgfast.adapters.libkge_checkpoints import read_libkge
from kgfast.adapters.official import load_official
from kgfast.datasets import load as load_data
from kgfast.frames import needed
from kgfast.graph import Names, Vocabulary
from kgfast.models import Reciprocal
from kgfast.text import reading
from kgfast.training import is_saved, write_tables
from kgfast.whole_files import new_folder

__all__ = ["FORMATS", "convert"]

_PYKEEN_MODEL = "trained_model.pkl"


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    data: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> list[Path]:
    """Write another library's trained model as a folder like that of :func:`kgfast.save`.

    :func:`kgfast.load_run` reads the folder, and so does ``kgfast evaluate OUT --data DIR``.

    Parameters
    ----------
    source
        A run of the official RotatE code, the folder of ``dglke_train``, or a checkpoint or package
        of LibKGE (a file), or the folder of PyKEEN's ``PipelineResult.save_to_directory``.
    out
        A folder that is empty or not there yet.
    format : {"official", "dglke", "libkge", "pykeen"}, optional
        The format of the source; detected from the files by default.
    data : path, optional
        The data, for the names of rows.
    trust : bool
        Unpickle a model of PyKEEN, which runs any code in the file.

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
    model, names = FORMATS[chosen](source, trust)
    inner = model.model if isinstance(model, Reciprocal) else model
    if not isinstance(inner, PLAIN):
        raise ValueError(
            f"{source}: a folder of tables holds {', '.join(it.__name__ for it in PLAIN)}; this "
            f"is a {type(inner).__name__}: rank it in Python ({_PAGES[chosen]})"
        )
    names = _checked_names(source, model, names, data)
    with new_folder(out) as scratch:
        write_tables(scratch, model, names, about={"converted_from": chosen})
    return sorted(Path(out).iterdir())


def _format_of(source: Path) -> str:
    if source.is_file():
        return "pykeen" if source.name == _PYKEEN_MODEL else "libkge"
    if (source / _PYKEEN_MODEL).is_file():
        return "pykeen"
    path = source / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{source}: neither config.json (official code, DGL-KE) nor {_PYKEEN_MODEL} (PyKEEN) "
            f"is there; of LibKGE name the checkpoint file"
        )
    config = read_options(path, "")
    if is_saved(source):
        raise ValueError(f"{source} is a folder of tables already: kgfast evaluate reads it")
    return "dglke" if "model_name" in config else "official"


def _from_pykeen(source: Path, trust: bool) -> NamedModel:
    path = source / _PYKEEN_MODEL if source.is_dir() else source
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if not trust:
        raise ValueError(
            f"{path} is a pickled object, and loading it runs any code in it: say that you trust "
            "the file (--trust), or convert the model in Python (from_pykeen)"
        )
    needed("pykeen", f"{path}: a model of PyKEEN")  # takes seconds to import
    from kgfast.adapters.pykeen import from_pykeen

    with reading(path, "damaged"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.load(path, map_location="cpu", weights_only=False)
    return NamedModel(from_pykeen(model), _names_of_pykeen(path.parent / "training_triples"))


def _names_of_pykeen(folder: Path) -> Names:
    """Return the labels of PyKEEN's training triples, if the triples are there."""
    from pykeen.triples import CoreTriplesFactory, TriplesFactory

    if not folder.is_dir():
        return None, None
    with reading(folder, "damaged"):
        try:
            factory: CoreTriplesFactory = TriplesFactory.from_path_binary(folder)
        except (KeyError, FileNotFoundError, TypeError):  # saved without labels
            return None, None
    if not isinstance(factory, TriplesFactory):
        return None, None
    entities, relations = (
        Vocabulary(sorted(ids, key=ids.__getitem__))
        for ids in (factory.entity_to_id, factory.relation_to_id)
    )
    return entities, relations


_PAGES = {
    "official": "docs/how-to/official.md",
    "dglke": "docs/how-to/dglke.md",
    "libkge": "docs/how-to/libkge.md",
    "pykeen": "docs/tutorials/pykeen.md",
}
FORMATS: dict[str, Callable[[Path, bool], NamedModel]] = {
    "official": lambda source, trust: NamedModel(load_official(source)),
    "dglke": lambda source, trust: NamedModel(load_dglke(source)),
    "libkge": lambda source, trust: read_libkge(source),
    "pykeen": _from_pykeen,
}


def _checked_names(
    source: Path, model: Any, names: Names, data: str | os.PathLike[str] | None
) -> Names:
    if data is not None:
        dataset = load_data(data)
        names = dataset.entities, dataset.relations
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        rows = getattr(model, f"num_{what}")
        if vocabulary is not None and len(vocabulary) != rows:
            whose = source if data is None else data
            raise ValueError(
                f"{whose}: {len(vocabulary):,} names of {what}, but {source} has {rows:,} rows: "
                f"they are not those of its tables"
            )
    return names
