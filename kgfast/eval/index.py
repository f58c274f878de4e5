"""Index: the tables of a model, packed once for all calls that rank against them."""

import os
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from kgfast.eval.index_file import read_index, write_index
from kgfast.eval.preparation import check_rankable, evaluating
from kgfast.eval.rows import entity_table
from kgfast.kernels.backend import kernel_of
from kgfast.kernels.operands import Prepared
from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import get_score
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Candidates, candidates_at
from kgfast.models.relations import blocks_at, is_in_blocks
from kgfast.ops.checks import check_candidates
from kgfast.ops.dispatch import backend_for, get_backend

_CPU = torch.device("cpu")
_COMPARED = 4096  # rows that are compared, spread evenly from the first to the last
_WATCHED = 256  # rows with a number that every call compares, spread evenly
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TableState:
    """State of a table ``[N, G]`` on the CPU at one moment."""

    def __init__(self, table: Tensor) -> None:
        self._version = None if table.is_inference() else table._version
        self._rows = _some_rows(table)
        # A weak reference would keep torch.utils.swap_tensors from moving the table.
        self._source = table if table._base is None else table._base
        self._watched = _watched_of(table)
        self._numbers = self._watched.clone()

    def is_changed(self, table: Tensor) -> bool:
        """Return True if the memory was written to since, as far as ``table`` tells.

        Rows are compared where the counter proves nothing: an inference tensor has none, and
        another tensor object may count on its own.
        """
        version = None if table.is_inference() else table._version
        if version != self._version or not torch.equal(self._watched, self._numbers):
            return True
        source = table if table._base is None else table._base
        if version is not None and self._source is source:
            return False
        return not torch.equal(_some_rows(table), self._rows)


def _watched_of(table: Tensor) -> Tensor:
    numbers = table.detach()[:: max(1, -(-len(table) // _WATCHED)), :1]
    return numbers if numbers.is_neg() else numbers.view(_BITS[numbers.element_size()])


def _some_rows(table: Tensor) -> Tensor:
    """Return the bytes of some rows; as bytes, a NaN equals itself."""
    count = min(len(table), _COMPARED)
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    ids = ids * (len(table) - 1) // max(1, count - 1)
    return table.detach().index_select(0, ids).view(torch.uint8)


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    torch.autograd.graph.increment_version([it for it in parameters if it.grad is not None])


register_optimizer_step_post_hook(_count_step)


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
    seconds : float
        Seconds that packing, or loading, took.

    Raises
    ------
    ValueError
        If a table is not on the CPU, or is read from files.

    Notes
    -----
    A table that changes under an index is noticed by torch's version counter, its place in memory
    and its shape: a call then raises, until :meth:`refresh`. The steps of all optimizers raise the
    counter, fused ones too. An inference tensor has none: 4,096 rows are compared then, as of
    another tensor on the same memory. Writes through ``.data``, numpy, a compiled step or another
    process leave the counter alone. Every call therefore compares the first number of 256 rows,
    spread evenly over the table: a write to all rows is noticed, a write to a few of many rows
    mostly not. Call :meth:`refresh` after such writes.

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
        self._held: tuple[_Held, ...] = ()
        self.refresh()

    @property
    def is_current(self) -> bool:
        """True if the model's tables are those that were packed, as far as torch can tell."""
        return all(
            any(_is_same(it.table, table) and not it.state.is_changed(table) for it in self._held)
            for table in _sources(self._of).tables
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed panels."""
        return sum(panels.nbytes for panels in self._panels if panels is not None)

    @property
    def _panels(self) -> list[Panels | None]:
        return [None if it.prepared is None else it.prepared.panels for it in self._held]

    def refresh(self) -> None:
        """Pack the model's tables as they are now; calls meanwhile read the tables themselves."""
        start = perf_counter()
        self._held = ()
        sources = _sources(self._of)
        # States of before: what is written meanwhile is a change.
        states = [TableState(table) for table in sources.tables]
        packed = [_packed(table, self.score, croppable=self.croppable) for table in sources.tables]
        self._hold(sources, states, packed)
        self.seconds = perf_counter() - start

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
        for own in self._held:
            if _is_same(own.table, table):
                break
        else:
            if self._not_packed:
                return None
            raise ValueError(
                f"index: it is of other tables, {_shapes([it.table for it in self._held])}, than "
                f"{_shapes([table])} of this call: kgfast.Index(model) packs that of another "
                f"model, index.refresh() one that took the place of an earlier one"
            )
        if own.state.is_changed(table):
            raise ValueError(
                f"index: the table {_shapes([own.table])} was written to after it was packed: "
                f"call index.refresh()"
            )
        return own.prepared

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the panels to a safetensors file; whole or not at all.

        The tables are packed again, so that the file has them as they are.

        Raises
        ------
        FileNotFoundError
            If its folder is not there.
        """
        self.refresh()
        tables = [it.table for it in self._held]
        write_index(path, (self.score, self.croppable), tables, self._panels)

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
            If it is no whole file of an index, or of another version, score or table.

        Warns
        -----
        RuntimeWarning
            If this machine reads other panels: the tables are packed again, in memory.
        """
        start = perf_counter()
        index = cls.__new__(cls)
        index._of, index.score = of, _score_of(of, score)
        sources = _sources(of)
        states = [TableState(table) for table in sources.tables]
        index.croppable, panels = read_index(path, index.score, sources.tables)
        packing = packing_here()
        if all(it is None or (packing and packing.reads(it)) for it in panels):
            packed = [
                own or _packed(table, index.score, croppable=index.croppable)
                for own, table in zip(panels, sources.tables, strict=True)
            ]
            index._hold(sources, states, packed)
            index.seconds = perf_counter() - start
        else:
            formats = "/".join(sorted({it.number_format for it in panels if it is not None}))
            warnings.warn(
                f"kgfast: {os.fspath(path)} holds {formats} panels of another machine: its "
                f"tables are packed again, in memory; save the index again here",
                RuntimeWarning,
                stacklevel=2,
            )
            index.refresh()
        return index

    def _hold(
        self, sources: "_Sources", states: list[TableState], packed: Sequence[Panels | str]
    ) -> None:
        """Hold panels, or the reasons why tables are not packed."""
        tables, reasons = sources
        self._not_packed = reasons + tuple(it for it in packed if isinstance(it, str))
        held = []
        for table, state, panels in zip(tables, states, packed, strict=True):
            own = table.detach()
            prepared = None
            if isinstance(panels, Panels):
                prepared = Prepared(own, get_score(str(self.score)), panels=panels)
                check_candidates(prepared, None)
            held.append(_Held(own, state, prepared))
        self._held = tuple(held)

    def __repr__(self) -> str:
        panels = [it for it in self._panels if it is not None]
        rows = " and ".join(f"{it.num_rows:,} rows x {it.num_features:,} features" for it in panels)
        parts = [type(self._of).__name__, str(self.score)]
        if panels:
            formats = "/".join(sorted({it.number_format for it in panels}))
            parts += [rows, formats, f"{self.nbytes / 1e6:,.1f} MB"]
            parts += [f"{self.seconds:.2g} s"]
        else:
            parts += ["holds nothing"]
        parts += [f"not packed: {reason}" for reason in self._not_packed]
        return f"Index({', '.join(parts)})"


class _Sources(NamedTuple):
    """Distinct tables of a model, and the reasons why others are left out."""

    tables: list[Tensor]
    reasons: tuple[str, ...] = ()


def _sources(of: Any) -> _Sources:
    if isinstance(of, Candidates):
        return _distinct([of])
    if is_in_blocks(of):
        return _Sources([], ("it is scored by a function",))
    with evaluating(of), torch.no_grad():
        sides = [side for side in SIDES if blocks_at(of, side, None) is None]
        twice = [[candidates_at(of, side, None) for _ in range(2)] for side in sides]
    reasons = () if sides else ("it is scored by a function",)
    if any(not _is_same(first.table, second.table) for first, second in twice):
        return _Sources([], (*reasons, "its candidates are made anew at every call"))
    tables, others = _distinct([first for first, _ in twice])
    return _Sources(tables, reasons + others)


def _distinct(sides: Sequence[Candidates]) -> _Sources:
    """Return distinct tables, which must be on the CPU."""
    tables: list[Tensor] = []
    for candidates in sides:
        table = candidates.table
        if table.device.type != "cpu":
            raise ValueError(
                f"an index serves tables on the CPU; this one is on {table.device}, where the "
                f"sweep reads it in place"
            )
        if candidates.factor is None and not any(_is_same(table, it) for it in tables):
            tables.append(table)
    moved = any(candidates.factor is not None for candidates in sides)
    return _Sources(tables, ("its queries are moved by a factor of the candidate",) * moved)


class _Held(NamedTuple):
    """A table with its state before packing; the tensor keeps other tables off its memory."""

    table: Tensor
    state: TableState
    prepared: Prepared | None  # None: the table is not packed


def _is_same(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
        and a.is_neg() == b.is_neg()
    )


def _packed(table: Tensor, score: str | None, *, croppable: bool) -> Panels | str:
    packing = packing_here()
    if packing is None:
        return "the reference backend reads tables in place"
    panels: Panels | str = packing.pack(
        Prepared(table.detach(), get_score(str(score))), croppable=croppable
    )
    return panels


def packing_here() -> Any:
    """Return the packing of the backend that serves tables on the CPU; None where it has none."""
    return kernel_of(get_backend(backend_for(_CPU)), "packing")


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


def _shapes(tables: Sequence[Tensor]) -> str:
    return " and ".join(f"{list(it.shape)} of {it.dtype}" for it in tables)


def check_index(index: Any, dims: Any) -> None:
    """Check that an index can serve a call."""
    if not isinstance(index, Index):
        raise TypeError(f"index must be a kgfast.Index; got {type(index).__name__}")
    if dims is not None and not index.croppable:
        raise ValueError(
            "index: it may order features as it likes, and dims= takes the first ones: "
            "kgfast.Index(model, croppable=True) keeps their order"
        )
