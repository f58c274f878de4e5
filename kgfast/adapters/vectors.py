"""Embeddings of other programs: exact search of the best rows, from memory or a file."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import ops, tables
from kgfast.models import from_array
from kgfast.storage import bytes_of, memory_limit
from kgfast.text import shown

# Scores of the operators, by common names of similarities.
SIMILARITIES = {"cosine": "dot", "dot": "dot", "euclidean": "l2", "manhattan": "l1"}

_PIECE = 1 << 22  # numbers that are checked and divided at once
_LISTS = 64  # queries whose lists of rows are read together
_BYTES = (torch.int8, torch.uint8)  # dtypes of quantised embeddings, which float32 holds exactly


class VectorSearch:
    """Rows of embeddings, and exact search of the best rows of each query.

    Scores are canonical float64 scores (docs/explanation/exactness.md), rounded once; the
    lowest row comes first among equals. For cosines each row is divided by its length in float64
    and rounded to float32, unless embeddings are float64. A row of zeros has the cosine 0 with
    every row.

    Parameters
    ----------
    similarity : {"cosine", "dot", "euclidean", "manhattan"}
        Higher is more similar: distances are negated.
    max_memory : int or str, optional
        Bytes of rows in memory, such as ``"4GiB"``: a quarter of free memory by default. If there
        are more, all rows lie in a file, which is read in blocks of that size.
    folder : path, optional
        An existing folder for this file; by default the folder of temporary files.
    """

    def __init__(
        self,
        similarity: str,
        *,
        max_memory: int | str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if similarity not in SIMILARITIES:
            known = ", ".join(SIMILARITIES)
            raise ValueError(f"similarity must be one of {known}; got {shown(similarity)}")
        self.similarity, self.score = similarity, SIMILARITIES[similarity]
        self.limit, self.folder = memory_limit(max_memory), folder
        self._remove: Any = None
        self.clear()

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all rows, and remove the file of rows."""
        if self._remove is not None:
            self._remove()
        self._count, self._width, self._dtype = 0, 0, torch.float32
        self._parts: list[Tensor] = []
        self._path: Path | None = None

    def add(self, embeddings: Any) -> None:
        """Add copies of rows ``[n, D]``, a tensor or an array; a mapped array is read in pieces.

        Raises
        ------
        TypeError, ValueError
            For another kind, dtype or width than that of earlier rows, and for a NaN or an
            infinity; the message names the row, and no row was added.
        """
        values = self._checked(embeddings)
        if self._count and values.dtype != self._dtype:
            raise TypeError(
                f"embeddings must be {self._dtype}, as earlier ones; got {values.dtype}"
            )
        self._width, self._dtype = values.shape[1], values.dtype
        for _, piece in _pieces(values):
            self._keep(self._made(piece, self._held))

    def search(self, queries: Any, k: int) -> tuple[Tensor, Tensor]:
        """Find the ``k`` best rows of each query, or all rows if there are fewer.

        Returns
        -------
        scores, ids : Tensor
            ``[B, k]`` from best to worst: float32, float64 for float64 embeddings; and int64.
        """
        asked, table = self._queries(queries), self._table()
        step = max(1, self.limit // table.row_bytes) if self._path else len(self)
        best = asked.new_empty((len(asked), 0)), asked.new_empty((len(asked), 0), dtype=torch.int64)
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            # topk refuses other k
            most = k if isinstance(k, bool) or k < 1 else min(k, stop - start)
            # No name holds a block while the next block is read.
            scores, ids = ops.topk(asked, table.block(start, stop), most, score=self.score)
            best = torch.cat([best[0], scores], 1), torch.cat([best[1], ids + start], 1)
            # Equal scores keep the order of rows.
            scores, order = best[0].sort(dim=1, descending=True, stable=True)
            best = scores[:, :k], best[1].gather(1, order[:, :k])
        return best[0].to(self._rounded), best[1]

    def among(self, queries: Any, k: int, lists: Sequence[Sequence[int]]) -> Iterator[list[Any]]:
        """Yield the ``k`` best ``(score, row)`` among the rows that each query lists."""
        asked, table = self._queries(queries), self._table()
        for first in range(0, len(asked), _LISTS):
            own = [_ids(it) for it in lists[first : first + _LISTS]]
            ids, places = torch.cat(own).unique(return_inverse=True)
            ends = _ids([0, *map(len, own)]).cumsum(0)
            scores, found = ops.topk(
                asked[first : first + _LISTS],
                table.rows(ids),
                k,
                score=self.score,
                candidate_ids=places.to(asked.device),
                candidate_indptr=ends.to(asked.device),
                pad=True,
            )
            found = found.cpu()
            rows = torch.where(found < 0, found, ids[found.clamp(min=0)]).tolist()
            for values, best in zip(scores.to(self._rounded).tolist(), rows, strict=True):
                yield [pair for pair in zip(values, best, strict=True) if pair[1] >= 0]

    @property
    def _rounded(self) -> torch.dtype:
        """Return the dtype of scores."""
        return torch.float64 if self._dtype == torch.float64 else torch.float32

    @property
    def _held(self) -> torch.dtype:
        """Return the dtype of stored rows."""
        return self._rounded if self.similarity == "cosine" else self._dtype

    def _table(self) -> tables.Rows:
        if self._path is not None:
            return tables.open(self._path, columns=self._width, dtype=self._held)
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts)]
        return tables.open(self._parts[0])

    def _keep(self, rows: Tensor) -> None:
        """Hold rows in memory up to the limit, and all rows in the file beyond."""
        self._count += len(rows)
        self._parts.append(rows)
        if self._path is None:
            if self._count * self._width * self._held.itemsize <= self.limit:
                return
            home = tempfile.mkdtemp(prefix="kgfast-", dir=self.folder)
            self._remove = weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
            self._path = Path(home) / "rows"
        with self._path.open("ab") as file:
            for part in self._parts:
                file.write(bytes_of(part).data)
        self._parts = []

    def _queries(self, embeddings: Any) -> Tensor:
        """Return queries ``[B, D]`` in float64, on the device of the rows."""
        if not self._count:
            raise ValueError("there are no documents: add embeddings before queries are searched")
        values = self._checked(embeddings)
        device = self._parts[0].device if self._parts else torch.device("cpu")
        dtype = self._held if self.similarity == "cosine" else torch.float64
        made = [self._made(piece, dtype) for _, piece in _pieces(values)]
        return torch.cat(made or [values]).to(device, torch.float64)

    def _checked(self, embeddings: Any) -> Tensor:
        """Return embeddings ``[n, D]`` that are finite and as wide as earlier rows."""
        values = from_array("embeddings", embeddings).detach().resolve_neg()
        if values.dtype in _BYTES:
            values = values.float()
        if values.dtype not in ops.TABLE_DTYPES:
            raise TypeError(f"embeddings must be floating point, int8 or uint8; got {values.dtype}")
        if values.ndim != 2 or not values.shape[1]:
            raise ValueError(f"embeddings must have shape [n, D]; got {list(values.shape)}")
        if self._count and values.shape[1] != self._width:
            raise ValueError(
                f"embeddings must have {self._width} columns, as the documents have; got "
                f"{values.shape[1]}"
            )
        for first, piece in _pieces(values):
            wrong = (~piece.isfinite().all(1)).nonzero()
            if len(wrong):
                raise ValueError(
                    f"embeddings: row {first + int(wrong[0])} of {len(values)} holds a NaN or an "
                    f"infinity; every number must be finite"
                )
        return values

    def _made(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows as used in comparisons: for cosines of length 1 or 0."""
        if self.similarity != "cosine":
            return rows.to(dtype, copy=True)
        is_zero = (rows == 0).all(1, keepdim=True)
        unit = tables.UnitRows(tables.open(rows.masked_fill(is_zero, 1)))
        return unit.block(0, len(rows)).masked_fill_(is_zero, 0).to(dtype)


def _pieces(values: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield rows some at a time, with the number of the first row."""
    step = max(1, _PIECE // values.shape[1])
    for first in range(0, len(values), step):
        yield first, values[first : first + step]


def _ids(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")
