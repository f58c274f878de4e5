"""Folders of N-Triples: ``train.nt``, and ``valid.nt`` and ``test.nt`` if any, gzipped or not.

Names are the addresses (IRIs) without their brackets; blank nodes are ``_:name``. Triples whose
object is a literal, such as a label or a number, are left out: they are no links.
"""

import io
import warnings
from typing import Any

from torch import Tensor

from kgfast.datasets.data_files import DataFile, Folder
from kgfast.datasets.lines import ids_of_names
from kgfast.graph import Vocabulary
from kgfast.text import in_a_line

_Columns = tuple[list[str], list[str], list[str]]


def read_ntriples(folder: Folder, _: str | None) -> tuple[Vocabulary, Vocabulary, list[Tensor]]:
    """Read such a folder: the vocabularies and the rows (h, r, t) of train, valid and test."""
    files = folder.splits("{}.nt")
    parts = [([], [], []) if file is None else _triples(file) for file in files]
    entities = Vocabulary(sorted({name for part in parts for name in (*part[0], *part[2])}))
    relations = Vocabulary(sorted({name for part in parts for name in part[1]}))
    rows = [
        ids_of_names(file, part, entities, relations)
        for file, part in zip(files, parts, strict=True)
    ]
    return entities, relations, rows


def _triples(file: DataFile) -> _Columns:
    try:
        import pyoxigraph
    except ImportError:
        raise ImportError(
            f'{file.path}: reading N-Triples needs pyoxigraph: pip install "kgfast[data]"'
        ) from None
    text = file.text()
    heads: list[str] = []
    relations: list[str] = []
    tails: list[str] = []
    literals = 0
    source = io.BytesIO(text.encode())
    try:
        for quad in pyoxigraph.parse(source, format=pyoxigraph.RdfFormat.N_TRIPLES):
            if isinstance(quad.object, pyoxigraph.Literal):
                literals += 1
                continue
            heads.append(_name(quad.subject))
            relations.append(_name(quad.predicate))
            tails.append(_name(quad.object))
    except SyntaxError as error:
        number = min(error.lineno or 1, text.count("\n") + 1)
        line = text.split("\n")[number - 1]
        problem = str(error.msg).partition(": ")[2] or str(error.msg)
        raise file.bad_line(number, in_a_line(problem), line) from None
    if literals:
        warnings.warn(
            f"{file.path}: {literals:,} triples whose object is a literal are left out",
            stacklevel=4,
        )
    return heads, relations, tails


def _name(term: Any) -> str:
    """An address, or a blank node."""
    return str(term) if str(term).startswith("_:") else str(term.value)
