"""Folders of models, with names of rows and known triples.

:func:`save`, ``kgfast export`` and ``kgfast convert`` write such folders, and
:func:`kgfast.load_run` reads them. docs/reference/files.md describes each file.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from kgfast import tables
from kgfast.datasets import Dataset, with_labels
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.labelled import write_labels
from kgfast.graph import (
    KnownTriples,
    Names,
    TimedRelations,
    Triples,
    TriplesLike,
    Vocabulary,
    as_triples_tensor,
    with_names,
)
from kgfast.models.base import Model
from kgfast.models.complex import ComplEx
from kgfast.models.conve import ConvE
from kgfast.models.cp import CP
from kgfast.models.distmult import DistMult
from kgfast.models.med import MED
from kgfast.models.reciprocal import Reciprocal
from kgfast.models.rescal import RESCAL
from kgfast.models.rotate import RotatE
from kgfast.models.rscf import RSCF
from kgfast.models.tntcomplex import TNTComplEx
from kgfast.models.transe import TransE
from kgfast.models.wrapper import unwrapped
from kgfast.tables.files import check_tensors, write
from kgfast.text import reading, shown
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
    RSCF: (),
    Reciprocal: ("order",),
    TNTComplEx: ("layout",),
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
    """Save a model as a folder that :func:`kgfast.load_run` and commands read.

    The folder is written whole or not at all. Little memory is needed for tables of any size.

    Parameters
    ----------
    model : Model
        RotatE, TransE, DistMult, ComplEx, TNTComplEx, CP, RESCAL or ConvE, and MED, RSCF or
        Reciprocal around one of them. Entities may be a :class:`kgfast.tables.Table`.
    folder
        A folder that is empty or not there yet.
    entities, relations : Vocabulary or iterable of str, optional
        Names in the order of the rows of the tables; inverse relations have none. Relations of
        quads are :class:`kgfast.graph.TimedRelations`.
    known : KnownTriples, Triples, Tensor, array, sequence or a list of them, optional
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
    >>> model = kgfast.TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/people", entities=["ann", "bob", "eve"], relations=["knows"])
    ...     run = kgfast.load_run(f"{folder}/people")
    >>> run.model, run.vocabulary.entities.names
    (TransE(num_entities=3, num_relations=1, dim=1), ('ann', 'bob', 'eve'))
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    layers = [layer for layer in modules if isinstance(layer, Model)]  # outermost first
    for layer in layers or [model]:
        if type(layer) not in _OPTIONS:
            raise TypeError(
                f"model must be {', '.join(_CLASSES)}, of which MED, RSCF and Reciprocal are "
                f"around another; got {type(layer).__name__}"
            )
        if isinstance(layer, RotatE):
            layer.check_range()
    described = [
        {"class": type(layer).__name__}
        | {key: getattr(layer, key) for key in _OPTIONS[type(layer)]}
        for layer in layers
    ]
    facts = {"format": FORMAT, "layers": described} | {key: getattr(model, key) for key in _SIZES}
    files: dict[str, Any] = {CONFIG: facts}
    entity = "model." * (len(layers) - 1) + "entity"  # a parameter, or a table
    tensors = dict(model.named_parameters()) | dict(model.named_buffers()) | {entity: model.entity}
    names = (
        _checked_names("entities", entities, model.num_entities),
        _checked_names("relations", relations, model.num_relations),
    )
    triples = None if known is None else _checked_known(known, names, model)
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        columns = () if vocabulary is None else map(list, vocabulary.columns)
        files |= zip((f"{what}.json", "times.json"), columns, strict=False)
    with new_folder(folder) as scratch:
        write(scratch / TENSORS, tensors, {"format": "pt"})
        for file, value in files.items():
            (scratch / file).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        write_labels(scratch, *(names_of for names_of in names if names_of is not None))
        if triples is not None:
            triples.save(scratch / KNOWN)


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
        "num_times": model.num_times,
    }
    if not isinstance(known, KnownTriples):
        try:
            ids, _ = with_names(known, names)
            return KnownTriples(Triples(as_triples_tensor(ids, **sizes), num_times=model.num_times))
        except (TypeError, ValueError) as error:
            raise type(error)(f"known: {error}") from None
    for what, size, most in zip(("entity", "relation"), known.sizes, sizes.values(), strict=False):
        if size > most:
            raise ValueError(f"known: {what} {size - 1} must be in 0..{most - 1}")
    return known


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a model of :func:`save`."""
    path = Path(folder) / CONFIG
    return path.is_file() and "format" in _facts(path)


def _facts(path: Path) -> dict[str, Any]:
    with reading(path, "not a JSON object"):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def load_tables(folder: Path, *, as_table: bool) -> tuple[Model, Names, KnownTriples | None]:
    """Load a folder of :func:`save`; with ``as_table``, entities stay in the file, not mapped.

    A ValueError names the file that cannot be read or does not fit.
    """
    path = folder / CONFIG
    facts = _facts(path)
    if facts.get("format") != FORMAT or type(facts["format"]) is not int:
        raise ValueError(
            f"{path}: format must be {FORMAT}; got {shown(facts.get('format'))}: the folder is of "
            f"another version of kgfast, or of another program (kgfast convert)"
        )
    with reading(folder, "config.json does not fit the tables"):
        model = _built(folder, facts["layers"], as_table)
        for key in _SIZES:
            if getattr(model, key) != facts.get(key):
                raise ValueError(
                    f"{path}: {key} is {shown(facts.get(key))}, of the tables {getattr(model, key)}"
                )
    names = _names(folder, "entities", model), _names(folder, "relations", model)
    known = KnownTriples.open(folder / KNOWN) if (folder / KNOWN).is_dir() else None
    return model, with_labels(folder, names, model.num_entities), known


def _built(folder: Path, layers: list[dict[str, Any]], as_table: bool) -> Model:
    """Make the model of layers, of which the first is the outermost."""
    from safetensors import safe_open

    prefix, path = "model." * (len(layers) - 1), folder / TENSORS
    with reading(path, "truncated or damaged"), safe_open(path, "pt") as file:
        names = set(file.keys())
        for name in (f"{prefix}entity", f"{prefix}relation"):
            if name not in names:
                raise ValueError(f"{path}: must hold {name}; it has {shown(sorted(names))}")
        state = {name: file.get_tensor(name) for name in names - {f"{prefix}entity"}}
    entity: Any = tables.open(f"{path}:{prefix}entity")
    rows = [entity if as_table else entity.mapped(), state.pop(f"{prefix}relation")]
    model: Any = None
    for layer in reversed(layers):
        if layer["class"] not in _CLASSES:
            raise ValueError(
                f"{folder / CONFIG}: tables of {shown(layer['class'])} are unknown here; known: "
                f"{', '.join(_CLASSES)}"
            )
        cls = _CLASSES[layer["class"]]
        options = {key: layer[key] for key in _OPTIONS[cls]}
        if cls is ConvE:
            weight = state[f"{prefix}convolution.weight"]
            options |= {"channels": len(weight), "kernel_size": weight.shape[-1]}
        more = cls.table_names[2:] if model is None else ()
        options |= {name: state.pop(prefix + name) for name in more}
        with torch.random.fork_rng(devices=()):  # fresh weights, which the state replaces
            model = cls(*(rows if model is None else [model]), **options)
    expected = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in unwrapped(model).table_names:
        expected.pop(prefix + name, None)
    check_tensors("model", state, expected)
    with torch.no_grad():
        for name, tensor in state.items():
            expected[name].copy_(tensor)
    built: Model = model.eval().requires_grad_(False)
    return built


def _names(folder: Path, what: str, model: Model) -> Vocabulary | None:
    path = folder / f"{what}.json"
    if not path.is_file():
        return None
    with reading(path, "not a list of names"):
        names, rows = Vocabulary(json.loads(path.read_text("utf-8"))), getattr(model, f"num_{what}")
        if what == "relations" and (folder / "times.json").is_file():
            times = json.loads((folder / "times.json").read_text("utf-8"))
            names = TimedRelations(names, Vocabulary(times))
        if len(names) != rows:
            raise ValueError(f"{len(names):,} names; the tables have {rows:,} rows")
    return names


def with_data(folder: Path, names: Names, dataset: Dataset) -> Dataset:
    """Return a dataset with the ids of the tables; triples are read by name."""
    maps: list[Any] = []
    both: Any = dict(zip(("entities", "relations"), names, strict=True))
    for what, ours in both.items():
        if ours is None:
            raise ValueError(
                f"{folder} has no names of {what}, by which data are read: save it with names, or "
                "name the data to kgfast convert"
            )
        with reading(folder, f"dataset {dataset.name} does not fit the {what}"):
            maps.append(ours.ids(getattr(dataset, what)))

    def renumbered(split: str) -> Triples:
        heads, relations, tails = dataset.split(split).hrt.cpu().unbind(1)
        return Triples(torch.stack([maps[0][heads], maps[1][relations], maps[0][tails]], 1), **both)

    train, valid, test = map(renumbered, SPLITS)
    return Dataset(dataset.name, train, valid, test, types=dataset.types, **both)
