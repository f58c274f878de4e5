"""Folders of N-Triples: ``train.nt``, and ``valid.nt`` and ``test.nt`` if any, gzipped or not.

Names are the addresses (IRIs) without their brackets; blank nodes are ``_:name``. Triples with a
literal as object, such as a label or a number, are no links and are left out.
"""

import io
import warnings
from typing import Any

from kgfast.datasets.data_files import DataFile, Folder
from kgfast.datasets.lines import Columns, Parts, numbered_names
from kgfast.frames import EXTRA, needed
from kgfast.text import in_a_line


def read_ntriples(folder: Folder, _: str | None) -> Parts:
    """Read a folder of N-Triples."""
    return numbered_names(folder.splits("{}.nt"), _triples)


def _triples(file: DataFile) -> Columns:
    pyoxigraph = needed("pyoxigraph", f"{file.path}: reading N-Triples", EXTRA)
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
            f"{file.path}: {literals:,} triples with a literal as object are left out",
            stacklevel=5,
        )
    return heads, relations, tails


def _name(term: Any) -> str:
    return str(term) if str(term).startswith("_:") else str(term.value)
