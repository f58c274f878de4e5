"""Index: the tables of a model, packed once for all calls that rank against them."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from kgfast.eval.preparation import check_rankable, evaluating
from kgfast.eval.rows import entity_table
from kgfast.kernels.backend import kernel_of
from kgfast.kernels.operands import Panels, Prepared
from kgfast.kernels.scores import get_score
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Candidates, candidates_at
from kgfast.models.relations import blocks_at, is_in_blocks
from kgfast.ops.checks import check_candidates
from kgfast.ops.dispatch import backend_for, get_backend
from kgfast.storage import Fingerprint, bytes_of
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

_WATCHED = 256  # rows with a number that every call compares, spread evenly
_KEY, _VERSION = "kgfast_index", 1
_DTYPES = {torch.float32: "F32", torch.int8: "I8"}
_PANEL = {"number_format": str, "score": str, "num_rows": int, "num_features": int}
_LINE = 64  # bytes; the data of a file begin at a line of the cache, so mapped panels are aligned
_BLOCK = 1 << 22  # numbers of a table that are hashed at once


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    torch.autograd.graph.increment_version([it for it in parameters if it.grad is not None])


register_optimizer_step_post_hook(_count_step)


class _Packed(NamedTuple):
    """A table ``[N, G]`` at one moment; the tensor keeps other tables off its memory."""

    table: Tensor
    version: int | None
    watched: Tensor  # a view of some numbers, as integers: a NaN equals itself
    numbers: Tensor  # the numbers then
    prepared: Prepared | None = None  # None: the table is not packed

    @classmethod
    def of(cls, table: Tensor) -> "_Packed":
        held = table.detach()
        watched = held[:: max(1, -(-len(held) // _WATCHED)), :1]
        if not held.is_neg():
            size = watched.element_size()
            watched = watched.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
        version = None if table.is_inference() else table._version
        return cls(held, version, watched, watched.clone())

    def is_changed(self, table: Tensor) -> bool:
        """Return True if the memory was written to since, as far as ``table`` tells."""
        version = None if table.is_inference() else table._version
        return version != self.version or not torch.equal(self.watched, self.numbers)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tables are the same part of memory."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
        and a.is_neg() == b.is_neg()
    )


class Index:
    """The candidates of a model, packed once: calls read them and do not pack the table again.

    Results are those without it, to the last digit. It pays where a call has few queries: one query
    takes about one read of the packed rows, or less. They take as much memory as a float32 table,
    or a quarter more, besides the table, which decides what is close; where both sides share a
    table, so do its panels. Biases are read from the model at every call.

    Parameters
    ----------
    of : Model or Candidates
        As :func:`kgfast.rank` takes it, its tables on the CPU. Models of other scores or tables
        than the sweep packs, of functions, and whose candidates are made anew at every call are
        served as without an index, which then holds nothing and says why.
    score : str, optional
        Score of :class:`Candidates`, which name none, such as ``dot`` or ``l1``.
    croppable : bool
        Keep the features in their own order, so that the index serves calls with ``dims``.

    Attributes
    ----------
    score : str or None
        Score of the model; None where a function scores.

    Raises
    ------
    ValueError
        If a table is not on the CPU, or is read from files.

    Notes
    -----
    A table that changes under an index is noticed by torch's version counter, its place in memory
    and its shape: a call then raises, until :meth:`refresh`. The steps of all optimizers raise the
    counter, fused ones too. An inference tensor has none, and writes through ``.data``, numpy, a
    compiled step or another process leave the counter alone. Every call therefore compares the
    first number of 256 rows, spread evenly over the table: a write to all rows is noticed, a write
    to a few of many rows mostly not. Call :meth:`refresh` after such writes.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE, topk
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> index = Index(model)
    >>> topk(model, heads=[0, 1], relations=0, k=1, index=index).ids.tolist()
    [[1], [1]]
    """

    def __init__(
        self,
        of: RankableModel | BlockScorer | Candidates,
        *,
        score: str | None = None,
        croppable: bool = False,
    ) -> None:
        self._of, self.croppable = of, croppable
        self.score = _score_of(of, score)
        self.refresh()

    @property
    def is_current(self) -> bool:
        """True if the model's tables are those that were packed, as far as torch can tell."""
        return all(
            any(_is_same(it.table, table) and not it.is_changed(table) for it in self._held)
            for table in _tables_of(self._of)[0]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed panels."""
        return sum(panels.nbytes for panels in self._panels)

    @property
    def _panels(self) -> list[Panels]:
        prepared = (held.prepared for held in self._held)
        return [it.panels for it in prepared if it is not None and it.panels is not None]

    def refresh(self) -> None:
        """Pack the model's tables as they are now; calls meanwhile read the tables themselves."""
        self._held: tuple[_Packed, ...] = ()
        self._hold(None)

    def _hold(self, panels: Sequence[Panels] | None) -> None:
        """Hold panels of the model's tables, packed now if none are given."""
        tables, reasons = _tables_of(self._of)
        packing, held = _packing(), []
        for place, table in enumerate(tables):
            # The state of before: a write meanwhile is a change.
            own, packed = _Packed.of(table), panels[place] if panels else None
            if packed is None and packing is None:
                reasons.append("the reference backend reads tables in place")
            elif packed is None and packing is not None:
                plain = Prepared(own.table, get_score(str(self.score)))
                found = packing.pack(plain, croppable=self.croppable)
                if isinstance(found, str):
                    reasons.append(found)
                else:
                    packed = found
            if packed is not None:
                prepared = Prepared(own.table, get_score(str(self.score)), panels=packed)
                check_candidates(prepared, None)
                own = own._replace(prepared=prepared)
            held.append(own)
        self._held, self._not_packed = tuple(held), reasons

    def prepared(self, candidates: Candidates, score: str) -> Prepared | None:
        """Return the packed rows of candidates, without bias; None where a call reads their table.

        Raises
        ------
        ValueError
            If the table or the score is another one, or the table has changed.
        """
        if not self._held or candidates.factor is not None:
            return None
        if score != self.score:
            raise ValueError(f"index: it is of the score {self.score!r}; the model's is {score!r}")
        table = candidates.table
        for held in self._held:
            if _is_same(held.table, table):
                if held.is_changed(table):
                    raise ValueError(
                        f"index: the table {_shape(table)} was written to after it was packed: "
                        f"call index.refresh()"
                    )
                return held.prepared
        if self._not_packed:
            return None
        others = " and ".join(_shape(held.table) for held in self._held)
        raise ValueError(
            f"index: it is of other tables, {others}, than {_shape(table)} of this call: "
            "kgfast.Index(model) packs that of another model, index.refresh() one that took the "
            "place of an earlier one"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the panels to a safetensors file; whole or not at all.

        The tables are packed again, so that the file has them as they are.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        self.refresh()
        whole = len(self._panels) == len(self._held)
        panels = self._panels if whole else []
        named = [
            (f"{i}.{name}", it) for i, own in enumerate(panels) for name, it in own.tensors.items()
        ]
        # The largest tensors first: their sizes are multiples of a line of the cache.
        tensors = dict(sorted(named, key=lambda item: -item[1].nbytes))
        facts = {
            "version": _VERSION,
            "score": self.score,
            "croppable": self.croppable,
            "tables": [_checksum(held.table) for held in self._held],
            "panels": [{name: getattr(own, name) for name in _PANEL} for own in panels],
            "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
        }
        header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(facts)}}
        start = 0
        for name, tensor in tensors.items():
            ends = [start, start := start + tensor.nbytes]
            kind = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
            header[name] = {**kind, "data_offsets": ends}
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % _LINE)

        def write(fresh: Path) -> None:
            with fresh.open("wb") as file:
                file.write(struct.pack("<Q", len(text)) + text)
                for tensor in tensors.values():
                    file.write(bytes_of(tensor).data)

        write_whole(path, write)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        of: RankableModel | BlockScorer | Candidates,
        *,
        score: str | None = None,
    ) -> Self:
        """Map what :meth:`save` wrote into memory, for the model that it was made of.

        Parameters
        ----------
        path
            Left as it is while the index is in use; a new file may be put in its place.
        of, score
            As for a new index: its tables must hold the same numbers.

        Raises
        ------
        FileNotFoundError
            If there is no file.
        ValueError
            If it is no whole file of an index, or of another version, score, table or kind of
            machine.
        """
        from safetensors import safe_open

        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file of an index")
        index = cls.__new__(cls)
        index._of, index.score = of, _score_of(of, score)
        with reading(path, "truncated, or no file of an index"), safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in tuple(file.keys())}
        with reading(path, "damaged"):
            if facts["version"] != _VERSION:
                raise ValueError(
                    f"{path}: an index of version {shown(facts['version'])}; this kgfast reads "
                    f"{_VERSION}: make the index again"
                )
            if facts["checksums"] != {name: _checksum(it) for name, it in tensors.items()}:
                raise ValueError("the panels do not have the checksums in the header")
            panels = [_panels_of(own, f"{i}.", tensors) for i, own in enumerate(facts["panels"])]
            index.croppable = bool(facts["croppable"])
            tables = _tables_of(of)[0]
            other = (facts["score"], facts["tables"]) != (index.score, [*map(_checksum, tables)])
        if other:
            raise ValueError(
                f"{path}: an index of another score or other tables than "
                f"{' and '.join(map(_shape, tables))} of the model: make the index again"
            )
        packing = _packing()
        for own, table in zip(panels, tables, strict=False):
            features = get_score(str(index.score)).num_features(table.shape[1])
            if (own.score, own.num_rows, own.num_features) != (index.score, len(table), features):
                raise ValueError(f"{path}: damaged: panels and table have different rows")
            if packing is None or not packing.reads(own):
                raise ValueError(
                    f"{path}: {shown(own.number_format)} panels of another machine: make the "
                    "index again on this machine"
                )
        index._hold(panels)
        return index

    def __repr__(self) -> str:
        parts = [type(self._of).__name__, str(self.score)]
        for own in self._panels:
            size = f"{own.num_rows:,} rows x {own.num_features:,} features"
            parts += [size, own.number_format, f"{own.nbytes / 1e6:,.1f} MB"]
        parts += [] if self._panels else ["holds nothing"]
        parts += [f"not packed: {reason}" for reason in self._not_packed]
        return f"Index({', '.join(parts)})"


def _tables_of(of: Any) -> tuple[list[Tensor], list[str]]:
    """Return the distinct tables of a model, on the CPU, and reasons why others are left out."""
    if isinstance(of, Candidates):
        sides = [of]
        is_function = anew = False
    else:
        with evaluating(of), torch.no_grad():
            names = [] if is_in_blocks(of) else SIDES
            names = [side for side in names if blocks_at(of, side, None) is None]
            sides, again = ([candidates_at(of, side, None) for side in names] for _ in range(2))
        is_function = not sides
        anew = not all(_is_same(a.table, b.table) for a, b in zip(sides, again, strict=True))
    tables: list[Tensor] = []
    for candidates in [] if anew else sides:
        table = candidates.table
        if table.device.type != "cpu":
            raise ValueError(
                f"an index serves tables on the CPU; this one is on {table.device}, where the "
                f"sweep reads it in place"
            )
        if candidates.factor is None and not any(_is_same(table, other) for other in tables):
            tables.append(table)
    reasons = {
        "it is scored by a function": is_function,
        "its candidates are made anew at every call": anew,
        "its queries are moved by a factor of the candidate": any(
            candidates.factor is not None for candidates in sides
        ),
    }
    return tables, [reason for reason, holds in reasons.items() if holds]


def _packing() -> Any:
    """Return the packing of the backend that serves tables on the CPU; None where it has none."""
    return kernel_of(get_backend(backend_for(torch.device("cpu"))), "packing")


def _score_of(of: Any, score: str | None) -> str | None:
    if isinstance(of, Candidates):
        if score is None:
            raise TypeError("score must be given with Candidates, which do not say theirs")
        return get_score(score).name
    check_rankable(of)
    if entity_table(of) is not None:
        raise ValueError(
            "an index serves tables in memory; the entities of this model are in files"
        )
    if score is not None:
        raise TypeError("score is the model's own: give it with Candidates only")
    return None if is_in_blocks(of) else get_score(of.score).name


def _panels_of(facts: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Panels:
    for name, kind in _PANEL.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} must be of {kind.__name__}; got {shown(facts[name])}")
    own = {name: it for name, it in tensors.items() if name.startswith(prefix)}
    return Panels(**facts, tensors={name.removeprefix(prefix): it for name, it in own.items()})


def _checksum(tensor: Tensor) -> str:
    """Hash a tensor in blocks of rows, so that a view is never copied whole."""
    fingerprint = Fingerprint()
    step = max(1, _BLOCK // max(1, tensor[:1].numel()))
    for rows in tensor.detach().split(step):
        fingerprint.add(rows)
    return fingerprint.text()


def _shape(table: Tensor) -> str:
    return f"{list(table.shape)} of {table.dtype}"


def check_index(index: Any, dims: Any) -> None:
    """Check that an index can serve a call."""
    if not isinstance(index, Index):
        raise TypeError(f"index must be a kgfast.Index; got {type(index).__name__}")
    if dims is not None and not index.croppable:
        raise ValueError(
            "index: it may order features as it likes, and dims= takes the first ones: "
            "kgfast.Index(model, croppable=True) keeps their order"
        )
