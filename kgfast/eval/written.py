"""Base of results with columns, which become tables of other programs and files."""

import os
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kgfast.frames import Columns, needed, write_columns, write_lines
from kgfast.graph import Vocabulary, VocabularyLike
from kgfast.text import shortened, shown
from kgfast.whole_files import write_whole

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

# IRIs have characters that N-Triples allows between < and >. A scheme alone, as in CHEBI:15377, is
# a prefix.
_IRI = re.compile(r"(?:[a-z][a-z0-9+.-]*://|urn:)[^\0- <>\"{}|^`\\\ud800-\udfff]+", re.IGNORECASE)


class Written(ABC):
    """Result with columns that can be written to files."""

    @abstractmethod
    def columns(self, vocabulary: VocabularyLike | None = None) -> Columns:
        """Return the columns, with the names of ``vocabulary`` or the names of the result."""

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return one row per fact or answer, best first, as a pandas DataFrame.

        A column ``query`` becomes the index.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            Names of entities and relations, instead of ids; by default the names given to
            ``named()``.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pd = needed("pandas", f"{type(self).__name__}.to_frame()")
        columns = dict(self.columns(vocabulary))
        query = columns.pop("query", None)
        index = None if query is None else pd.Index(query, name="query", dtype="int64")
        frame: DataFrame = pd.DataFrame(columns, index=index)
        return frame

    def to_csv(self, path: str | os.PathLike[str], *, safe_cells: bool = False) -> Path:
        """Write the columns of :meth:`to_frame` as CSV, or as TSV for ``.tsv``; needs no pandas.

        Parameters
        ----------
        path
        safe_cells : bool
            Write for spreadsheets, which compute cells that begin with ``=``, ``+``, ``-`` or
            ``@``. A ``'`` is put before such names, and all text is quoted. Programs that read the
            file need unchanged names.
        """
        return write_columns(self.columns(), path, safe_cells=safe_cells)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns of :meth:`to_frame` as Parquet.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        return write_columns(self.columns(), path)


class WrittenTriples(Written):
    """Result with columns ``head``, ``relation`` and ``tail``."""

    def to_ntriples(self, path: str | os.PathLike[str], *, base: str | None = None) -> Path:
        """Write the triples as N-Triples, in their order, without scores; whole or not at all.

        Parameters
        ----------
        path
        base : str, optional
            Prefix of names that are no IRIs, such as ``"http://example.org/"``; these names are
            percent-encoded. Names that begin with ``scheme://`` or ``urn:``, and have only
            characters of IRIs, are written unchanged.

        Raises
        ------
        ValueError
            For triples without names, a ``base`` that is no IRI, and a name that needs one.
        """
        if base is not None and (not isinstance(base, str) or not _IRI.fullmatch(base)):
            raise ValueError(f"base must be an IRI, as http://example.org/ is; got {shown(base)}")
        columns = self.columns()
        rows = list(zip(*(columns[it] for it in ("head", "relation", "tail")), strict=True))
        iris: dict[str, str] = {}
        for row, triple in enumerate(rows):
            for name in triple:
                if name not in iris:
                    iris[name] = _iri(name, base, row)
        lines = (" ".join(f"<{iris[name]}>" for name in triple) + " .\n" for triple in rows)
        return write_whole(path, lambda beside: write_lines(lines, beside))


def _iri(name: Any, base: str | None, row: int) -> str:
    if not isinstance(name, str):
        raise ValueError(
            "N-Triples need names of entities and of relations: use .named(vocabulary)"
        )
    if _IRI.fullmatch(name):
        return name
    if base is None:
        raise ValueError(
            f"row {row}: {shown(name)} is no IRI (scheme://... or urn:...); base= goes before such "
            f'names, as base="http://example.org/" does'
        )
    return base + quote(name, safe="", errors="surrogatepass")


def texts(ids: "Tensor", names: Vocabulary | None, width: int | None = None) -> list[str]:
    """Return names with their labels, or the ids where there are no names.

    A text without a label has at most ``width`` columns. A text with a label has at most twice as
    many, since people read labels and not identifiers.
    """
    found = ids.tolist() if names is None else [names.text(id) for id in ids.tolist()]
    if width is None:
        return [str(it) for it in found]
    room = 2 * width if names is not None and names.labels else width
    return [shortened(str(it), room) for it in found]
