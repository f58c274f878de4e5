"""mteb's search index (``IndexEncoderSearchProtocol``, mteb 2): exact, in bounded memory.

SearchEncoderWrapper(model, index_backend=kgfast.adapters.mteb.KgfastSearchIndex(model))

mteb itself is not imported: mteb's wrapper calls the three methods.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import ops, tables
from kgfast.models import from_array
from kgfast.storage import bytes_of, memory_limit
from kgfast.text import shown

__all__ = ["KgfastSearchIndex"]

SIMILARITIES = {"cosine": "dot", "dot": "dot", "euclidean": "l2", "manhattan": "l1"}  # scores
_PIECE = 1 << 22  # numbers that are checked and divided at once
_BYTES = (torch.int8, torch.uint8)  # dtypes of quantised embeddings, which float32 holds exactly


class KgfastSearchIndex:
    """Exact search among embeddings, with the interface of mteb's ``FaissSearchIndex``.

    Scores are canonical float64 scores, rounded once; the first document comes first among equals.
    Errors (ValueError, TypeError) name the argument and the first row; no row was added then.

    Parameters
    ----------
    model : EncoderProtocol
        A model of mteb, whose ``mteb_model_meta.similarity_fn_name`` names the similarity.
    similarity : {"cosine", "dot", "euclidean", "manhattan"}, optional
        The similarity for a model without a name. For cosines each row is divided by its length in
        float64 and rounded to float32; a row of zeros has the cosine 0 with every row.
    max_memory : int or str, optional
        Bytes of embeddings in memory, such as ``"4GiB"``: a quarter of free memory by default. More
        embeddings lie in a temporary file (``TMPDIR``), which is read in blocks.

    Examples
    --------
    >>> import numpy as np
    >>> index = KgfastSearchIndex(None, similarity="cosine")
    >>> index.add_documents(np.eye(3, 2, dtype=np.float32), ["a", "b", "zero"])
    >>> index.search(np.array([[2.0, 0.0]]), 2, None)
    ([[1.0, 0.0]], [[0, 1]])
    """

    _dtype: torch.dtype  # type of the embeddings that were added

    def __init__(
        self,
        model: Any,
        *,
        similarity: str | None = None,
        max_memory: int | str | None = None,
    ) -> None:
        if similarity is None:
            name = getattr(getattr(model, "mteb_model_meta", None), "similarity_fn_name", None)
            similarity = str(getattr(name, "value", name))
        if similarity not in SIMILARITIES:
            known = ", ".join(SIMILARITIES)
            raise ValueError(f"similarity must be one of {known}; got {shown(similarity)}")
        self.similarity, self.limit = similarity, memory_limit(max_memory)
        self._remove: Any = None
        self.clear()

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add embeddings ``[n, D]`` of documents, and the ``n`` ids of the documents."""
        if len(idxs) != len(embeddings):
            raise ValueError(f"idxs must have {len(embeddings)} ids, one a row; got {len(idxs)}")
        values = self._checked(embeddings)
        if self.idxs and values.dtype != self._dtype:
            earlier = f"{self._dtype}, as earlier ones"
            raise TypeError(f"embeddings must be {earlier}; got {values.dtype}")
        self._dtype = values.dtype
        self._rounded = torch.float64 if values.dtype == torch.float64 else torch.float32
        self._held = self._rounded if self.similarity == "cosine" else values.dtype
        self.idxs.extend(idxs)
        self._width = values.shape[1]
        for piece in _pieces(values):
            self._parts.append(self._compared(piece, self._held))
            if self._path or sum(it.nbytes for it in self._parts) > self.limit:
                self._write()

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Any,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Find scores and places of the ``top_k`` best documents of each query ``[B, D]``.

        ``similarity_fn`` is not called. With ``top_ranked``, which lists ids of documents by the id
        of a query, and ``query_idx_to_id``, documents and places are those of the lists.
        """
        asked, table = self._queries(embeddings), self._table()
        if top_ranked is None:
            scores, ids = self._best(asked, table, top_k)
            return scores.tolist(), ids.tolist()
        if query_idx_to_id is None:
            raise ValueError("query_idx_to_id must be given with top_ranked")
        known = {name: row for row, name in enumerate(self.idxs)}
        found: tuple[list[list[float]], list[list[int]]] = [], []
        for row in range(len(asked)):
            query = query_idx_to_id[row]
            names = top_ranked.get(query) or ()
            unknown = next((name for name in names if name not in known), None)
            if unknown is not None:
                needed = "must name documents that were added"
                raise ValueError(f"top_ranked[{shown(query)}] {needed}; got {shown(unknown)}")
            listed = sorted({known[name]: place for place, name in enumerate(names)}.items())
            rows = table.rows(
                torch.tensor([it for it, _ in listed], dtype=torch.int64, device="cpu")
            )
            scores, ids = self._best(asked[row : row + 1], tables.open(rows), top_k)
            found[0].append(scores[0].tolist())
            found[1].append([listed[it][1] for it in ids[0].tolist()])
        return found

    def clear(self) -> None:
        """Forget all documents, and remove the file of embeddings."""
        if self._remove is not None:
            self._remove()
        self.idxs: list[str] = []
        self._parts: list[Tensor] = []
        self._path: Path | None = None

    def _best(self, queries: Tensor, table: tables.Rows, k: int) -> tuple[Tensor, Tensor]:
        """Return scores and numbers of the best rows, or of all rows if there are fewer."""
        scores = queries.new_empty((len(queries), 0))
        ids = queries.new_empty((len(queries), 0), dtype=torch.int64)
        score, step = SIMILARITIES[self.similarity], max(1, self.limit // table.row_bytes)
        for start in range(0, len(table), step):
            stop = min(start + step, len(table))
            most = k if k < 1 else min(k, stop - start)  # topk refuses other k
            # No name holds a block while the next block is read.
            best = ops.topk(queries, table.block(start, stop), most, score=score)
            # Equal scores keep the order of rows.
            scores = torch.cat([scores, best[0]], 1)
            scores, order = scores.sort(dim=1, descending=True, stable=True)
            ids = torch.cat([ids, best[1] + start], 1).gather(1, order)[:, :k]
            scores = scores[:, :k]
        return scores.to(self._rounded), ids

    def _table(self) -> tables.Rows:
        if self._path is not None:
            return tables.open(self._path, columns=self._width, dtype=self._held)
        self._parts = [torch.cat(self._parts)]
        return tables.open(self._parts[0])

    def _write(self) -> None:
        if self._path is None:
            home = tempfile.mkdtemp(prefix="kgfast-")
            self._remove = weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
            self._path = Path(home) / "rows"
        with self._path.open("ab") as file:
            for part in self._parts:
                file.write(bytes_of(part).data)
        self._parts = []

    def _queries(self, embeddings: Any) -> Tensor:
        """Return queries ``[B, D]`` in float64, on the device of the rows."""
        if not self.idxs:
            raise ValueError("there are no documents: add embeddings before queries are searched")
        values = self._checked(embeddings)
        dtype = self._held if self.similarity == "cosine" else torch.float64
        asked = torch.cat([self._compared(it, dtype) for it in _pieces(values)] or [values])
        return asked.to(self._parts[0].device if self._parts else "cpu", torch.float64)

    def _checked(self, embeddings: Any) -> Tensor:
        """Return embeddings ``[n, D]`` that are finite and as wide as earlier rows."""
        values = from_array("embeddings", embeddings).detach().resolve_neg()
        if values.dtype in _BYTES:
            values = values.float()
        if values.dtype not in ops.TABLE_DTYPES:
            raise TypeError(f"embeddings must be floating point, int8 or uint8; got {values.dtype}")
        if values.ndim != 2 or not values.shape[1]:
            raise ValueError(f"embeddings must have shape [n, D]; got {list(values.shape)}")
        if self.idxs and values.shape[1] != self._width:
            needed = f"{self._width} columns, as the documents have"
            raise ValueError(f"embeddings must have {needed}; got {values.shape[1]}")
        first = 0
        for piece in _pieces(values):
            wrong = (~piece.isfinite().all(1)).nonzero()
            if len(wrong):
                place = f"row {first + int(wrong[0])} of {len(values)}"
                problem = "holds a NaN or an infinity; every number must be finite"
                raise ValueError(f"embeddings: {place} {problem}")
            first += len(piece)
        return values

    def _compared(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of rows as they are compared: for cosines of length 1 or 0."""
        if self.similarity != "cosine":
            return rows.to(dtype, copy=True)
        is_zero = (rows == 0).all(1, keepdim=True)
        unit = tables.UnitRows(tables.open(rows.masked_fill(is_zero, 1)))
        return unit.block(0, len(rows)).masked_fill_(is_zero, 0).to(dtype)


def _pieces(values: Tensor) -> Sequence[Tensor]:
    return values.split(max(1, _PIECE // values.shape[1])) if len(values) else ()
