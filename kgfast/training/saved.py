"""Folders of tables: a model of kgfast in files, with names of rows and known triples.

:func:`save`, ``kgfast export`` and ``kgfast convert`` write such folders, and
:func:`kgfast.load_run` reads them. docs/tutorials/own_tables.md describes each file.
"""

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from kgfast import __version__, tables
from kgfast.datasets import Dataset, with_labels
from kgfast.datasets.dataset import SPLITS
from kgfast.graph import (
    KnownTriples,
    Names,
    Triples,
    TriplesLike,
    Vocabulary,
    as_triples_tensor,
    with_names,
)
from kgfast.models import (
    CP,
    MED,
    RESCAL,
    RSCF,
    ComplEx,
    ConvE,
    DistMult,
    Model,
    Reciprocal,
    RotatE,
    TransE,
    Wrapper,
)
from kgfast.text import reading, shown
from kgfast.training.checkpoint import blocks, check_tensors, write
from kgfast.whole_files import new_folder

FORMAT = 1
CONFIG, TENSORS, KNOWN = "config.json", "model.safetensors", "known"
# Options of each class: in the constructor, and as attributes of the model.
_OPTIONS: dict[Any, tuple[str, ...]] = {
    RotatE: ("gamma", "layout", "relation_format", "norm"),
    TransE: ("gamma", "norm"),
    DistMult: (),
    ComplEx: ("layout",),
    CP: (),
    RESCAL: (),
    ConvE: ("embedding_height",),
    MED: ("dims", "submodels_per_step", "crop", "loss_weight"),
    RSCF: ("relation_transform",),
    Reciprocal: ("order",),
}
_CLASSES = {cls.__name__: cls for cls in _OPTIONS}
_SIZES = ("score", "dim", "num_entities", "num_relations")


def save(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    entities: Iterable[str] | None = None,
    relations: Iterable[str] | None = None,
    known: KnownTriples | TriplesLike | None = None,
) -> None:
    """Save a model as a folder that :func:`kgfast.load_run` and every command read.

    ``kgfast evaluate``, ``predict``, ``serve`` and ``report`` take the folder instead of a run. The
    folder is written whole or not at all. Little memory is needed for tables of any size.

    Parameters
    ----------
    model : Model
        RotatE, TransE, DistMult, ComplEx, CP, RESCAL or ConvE, and MED, RSCF or Reciprocal around
        one of them. Entities may be a :class:`kgfast.tables.Table`.
    folder
        A folder that is empty or not there yet.
    entities, relations : Vocabulary or iterable of str, optional
        Names in the order of the rows of the tables; inverse relations have none.
    known : KnownTriples, Triples, Tensor, array or sequence, optional
        Triples that predictions leave out, of ids or of names.

    Raises
    ------
    TypeError
        If the model is of another class, or a name is no text.
    ValueError
        If the folder is not empty; for another number of names than rows, a repeated or empty name
        or one that holds a tab or a line break, and triples out of range: the message names the
        argument and the row.

    Examples
    --------
    >>> import tempfile
    >>> import kgfast
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/people", entities=["ann", "bob", "eve"], relations=["knows"])
    ...     run = kgfast.load_run(f"{folder}/people")
    >>> run.model, run.vocabulary.entities.names
    (TransE(num_entities=3, num_relations=1, dim=1), ('ann', 'bob', 'eve'))
    """
    describe(model)
    names = (
        _checked_names("entities", entities, model.num_entities),
        _checked_names("relations", relations, model.num_relations),
    )
    triples = None if known is None else _checked_known(known, names, model)
    with new_folder(folder) as scratch:
        write_tables(scratch, model, names, known=triples)


def _checked_names(argument: str, names: Any, count: int) -> Vocabulary | None:
    if names is None:
        return None
    if isinstance(names, str | os.PathLike):
        raise TypeError(f"{argument} must be a list of names; got {shown(os.fspath(names))}")
    try:
        vocabulary = names if isinstance(names, Vocabulary) else Vocabulary(names)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None
    for row, name in enumerate(vocabulary):
        if not name or any(mark in name for mark in "\t\n\r"):
            where = f"{argument}[{row}] = {shown(name)}"
            raise ValueError(f"{where} must have a character, no tab and no line break")
    if len(vocabulary) != count:
        raise ValueError(
            f"{argument} must be {count:,} names, one for each row; got {len(vocabulary):,}"
        )
    return vocabulary


def _checked_known(known: Any, names: Names, model: Model) -> KnownTriples:
    sizes: dict[str, Any] = {
        "num_entities": model.num_entities,
        "num_relations": model.num_relations,
    }
    if not isinstance(known, KnownTriples):
        try:
            ids, _ = with_names(known, names)
            return KnownTriples(as_triples_tensor(ids, **sizes))
        except (TypeError, ValueError) as error:
            raise type(error)(f"known: {error}") from None
    for what, size, most in zip(("entity", "relation"), known.sizes, sizes.values(), strict=True):
        if size > most:
            raise ValueError(f"known: {what} {size - 1} must be in 0..{most - 1}")
    return known


def write_tables(
    folder: Path,
    model: Model,
    names: Names = (None, None),
    *,
    known: KnownTriples | None = None,
    about: Mapping[str, Any] | None = None,
    as_npy: bool = False,
) -> None:
    """Write the files of a folder; ``about`` is added to config.json.

    With ``as_npy`` a model of two tables is written as ``entity.npy`` and ``relation.npy``.
    """
    facts = describe(model)
    if as_npy:
        for name in ("entity", "relation"):
            _write_npy(folder / f"{name}.npy", getattr(model, name))
    else:
        write(folder / TENSORS, _state(model), {"format": "pt"})
    write_json(folder / CONFIG, facts | dict(about or {}))
    write_names(folder, names)
    if known is not None:
        known.save(folder / KNOWN)


def describe(model: Model) -> dict[str, Any]:
    """Return the facts that define the score of a model's tensors; refuse unknown classes."""
    layers, inner = [], model
    while True:
        if type(inner) not in _OPTIONS:
            raise TypeError(
                f"model must be {', '.join(_CLASSES)}, the last three around another; got "
                f"{type(inner).__name__}"
            )
        options = {key: getattr(inner, key) for key in _OPTIONS[type(inner)]}
        layers.append({"class": type(inner).__name__, **options})
        if not isinstance(inner, Wrapper):
            break
        inner = inner.model
    *wrappers, plain = layers
    if isinstance(inner, RotatE):
        plain["embedding_range"] = inner.embedding_range  # for readers of raw relations
    return {
        "format": FORMAT,
        "written_by": f"kgfast {__version__}",
        "model": plain.pop("class"),
        **plain,
        "wrappers": wrappers,
        **{key: getattr(model, key) for key in _SIZES},
    }


def write_names(folder: Path, names: Names) -> None:
    """Write names and labels of entities and relations in the order of rows."""
    labels: dict[str, str] = {}
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        if vocabulary is not None:
            write_json(folder / f"{what}.json", list(vocabulary))
            labels |= vocabulary.labels
    if labels:
        lines = (f"{name}\t{label}\n" for name, label in labels.items())
        (folder / "labels.tsv").write_text("".join(lines), encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write a value as text that people can read."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _state(model: Model) -> dict[str, Any]:
    """Return the tensors of a model by the names of the state dict; entities may be a table."""
    entity = "model." * len(describe(model)["wrappers"]) + "entity"
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    return held | {entity: model.entity}


def _write_npy(path: Path, rows: Any) -> None:
    """Write an array of numpy without holding the array in memory; numpy has no bfloat16."""
    dtype = torch.float32 if rows.dtype == torch.bfloat16 else rows.dtype
    kind = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    array, start = np.lib.format.open_memmap(path, "w+", kind, tuple(rows.shape)), 0
    for block in blocks(rows):
        array[start : start + len(block)] = block.to(dtype).numpy()
        start += len(block)


def holds_tables(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds tables, of kgfast or the official code, and no run."""
    path = Path(folder)
    return not (path / "config.yaml").is_file() and (path / CONFIG).is_file()


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """Return whether the config.json of a folder is one of kgfast."""
    return not {"format", "score"}.isdisjoint(_facts(Path(folder)))


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    with reading(path, "not a JSON object"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError(f"{path}: not a JSON object")
    return facts


def load_tables(folder: Path, *, as_table: bool) -> tuple[Model, Names, KnownTriples | None]:
    """Load a folder of tables; with ``as_table``, entities stay in the file and are not mapped.

    A ValueError names the file that cannot be read or does not fit.
    """
    path, facts = folder / CONFIG, _facts(folder)
    if facts.get("format") != FORMAT or type(facts["format"]) is not int:
        raise ValueError(
            f"{path}: format must be {FORMAT}; got {shown(facts.get('format'))}: the folder is of "
            f"another version of kgfast, or of another program (kgfast.load_official)"
        )
    with reading(folder, "config.json does not fit the tables"):
        model = _built(folder, facts, as_table)
        for key in _SIZES:
            if getattr(model, key) != facts.get(key):
                raise ValueError(
                    f"{path}: {key} is {shown(facts.get(key))}, of the tables {getattr(model, key)}"
                )
    names = _names(folder, "entities", model), _names(folder, "relations", model)
    known = KnownTriples.open(folder / KNOWN) if (folder / KNOWN).is_dir() else None
    return model, with_labels(folder, names, model.num_entities), known


def _built(folder: Path, facts: Mapping[str, Any], as_table: bool) -> Model:
    layers = [{"class": facts["model"], **facts}, *reversed(facts.get("wrappers", []))]
    for layer in layers:
        if layer["class"] not in _CLASSES:
            raise ValueError(
                f"{folder / CONFIG}: tables of {shown(layer['class'])} are unknown here; known: "
                f"{', '.join(_CLASSES)}"
            )
    prefix, path = "model." * (len(layers) - 1), folder / TENSORS
    state: dict[str, Any] = {}
    if path.is_file():
        state = _others(path, prefix)
        entity: Any = tables.open(f"{path}:{prefix}entity")
    else:
        entity, relation = tables.open(folder / "entity.npy"), tables.open(folder / "relation.npy")
        state[f"{prefix}relation"] = relation.block(0, relation.shape[0])
    model: Any = None
    for layer in layers:
        cls = _CLASSES[layer["class"]]
        options = {key: layer[key] for key in _OPTIONS[cls] if key in layer}
        if cls is ConvE:
            weight = state[f"{prefix}convolution.weight"]
            options |= {"channels": len(weight), "kernel_size": weight.shape[-1]}
            options["generator"] = torch.Generator()
        if cls is RSCF:
            options["seed"] = 0
        if model is None:
            entities = entity if as_table else entity.mapped()
            model = cls(entities, state.pop(f"{prefix}relation"), **options)
        else:
            model = cls(model, **options)
    expected = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in ("entity", "relation"):
        expected.pop(prefix + name, None)
    check_tensors("model", state, expected)
    with torch.no_grad():
        for name, tensor in state.items():
            expected[name].copy_(tensor)
    built: Model = model.eval().requires_grad_(False)
    return built


def _others(path: Path, prefix: str) -> dict[str, Tensor]:
    """Read all tensors of a file but the entities."""
    with reading(path, "truncated or damaged"), safe_open(path, "pt") as file:
        names = set(file.keys())
        for name in (f"{prefix}entity", f"{prefix}relation"):
            if name not in names:
                raise ValueError(f"{path}: must hold {name}; it has {shown(sorted(names))}")
        return {name: file.get_tensor(name) for name in names - {f"{prefix}entity"}}


def _names(folder: Path, what: str, model: Model) -> Vocabulary | None:
    path = folder / f"{what}.json"
    if not path.is_file():
        return None
    with reading(path, "not a list of names"):
        names, rows = Vocabulary(json.loads(path.read_text("utf-8"))), getattr(model, f"num_{what}")
        if len(names) != rows:
            raise ValueError(f"{len(names):,} names; the tables have {rows:,} rows")
    return names


def with_data(
    folder: Path, model: Any, names: Names, dataset: Dataset
) -> tuple[tuple[Vocabulary, Vocabulary], Dataset]:
    """Return names, and a dataset with the ids of the tables; triples are read by name.

    Rows without names in the folder get the names of the dataset, in order, with a warning.
    """
    maps, named = [], []
    of_data = dataset.entities, dataset.relations
    for what, theirs, ours in zip(("entities", "relations"), of_data, names, strict=True):
        rows = getattr(model, f"num_{what}")
        if ours is None and len(theirs) != rows:
            raise ValueError(
                f"{folder} has {rows:,} rows of {what} without names, dataset {dataset.name} "
                f"{len(theirs):,} names: these are not names of the rows"
            )
        if ours is None:
            warnings.warn(
                f"{folder} has no names of {what}: rows are taken to be numbered as in dataset "
                f"{dataset.name}",
                stacklevel=4,
            )
        with reading(folder, f"dataset {dataset.name} does not fit the {what}"):
            named.append(theirs if ours is None else ours)
            maps.append(named[-1].ids(theirs))
    both, (entity, relation) = (named[0], named[1]), maps

    def renumbered(split: str) -> Triples:
        heads, relations, tails = dataset.split(split).hrt.cpu().unbind(1)
        ids = torch.stack([entity[heads], relation[relations], entity[tails]], 1)
        return Triples(ids, entities=both[0], relations=both[1])

    train, valid, test = map(renumbered, SPLITS)
    return both, Dataset(dataset.name, train, valid, test, *both)
