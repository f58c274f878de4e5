"""Index: the tables of a model, packed once for all calls that rank against them."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from kgfast.eval.preparation import check_rankable, evaluating
from kgfast.eval.rows import entity_table
from kgfast.kernels.operands import Panels, Prepared
from kgfast.kernels.scores import get_score
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Candidates, candidates_at
from kgfast.models.relations import blocks_at, is_in_blocks
from kgfast.ops.checks import check_candidates
from kgfast.ops.dispatch import backend_for, get_backend
from kgfast.storage import digest
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

_KEY, _FORMAT = "kgfast_index", 1
_WATCHED = 256  # rows with a number that every call compares, spread evenly


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                torch.autograd.graph.increment_version(parameter)


register_optimizer_step_post_hook(_count_step)


class _Packed(NamedTuple):
    """Table ``[N, G]`` at one moment; while its tensor is held, no other table gets the memory."""

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
    """Return whether two tables have the same memory, shape and strides."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
        and a.is_neg() == b.is_neg()
    )


class Index:
    """The candidates of a model, packed once: calls read them and do not pack the table again.

    An index changes no result, not in the last digit. An index pays for calls with few queries: one
    query takes about one read of the packed rows, or less. Packed rows take as much memory as a
    float32 table, or a quarter more. The table itself stays in memory, since its rows decide close
    scores. If both sides share a table, they share the packed rows. Biases are read from the model
    at every call.

    Parameters
    ----------
    model : Model
        A model as :func:`kgfast.rank` takes it, with tables on the CPU. Some models are served as
        without an index: models with a score or a table that is not packed, models of functions,
        and models that compute their candidates at every call. The index then holds nothing, and
        its text says why.
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

    def __init__(self, model: RankableModel | BlockScorer, *, croppable: bool = False) -> None:
        self._open(model, croppable=croppable)
        self.refresh()

    def _open(self, model: RankableModel | BlockScorer, *, croppable: bool) -> None:
        check_rankable(model)
        if entity_table(model) is not None:
            raise ValueError(
                "an index serves tables in memory; the entities of this model are in files"
            )
        self._model, self.croppable = model, croppable
        self.score: str | None = None
        if not (isinstance(model, BlockScorer) or is_in_blocks(model)):
            self.score = get_score(model.score).name

    @property
    def is_current(self) -> bool:
        """True if the model's tables are those that were packed, as far as torch can tell."""
        return all(
            any(_is_same(held.table, table) and not held.is_changed(table) for held in self._held)
            for table in _tables_of(self._model)[0]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed panels."""
        return sum(panels.nbytes for panels in self._panels)

    @property
    def _panels(self) -> list[Panels]:
        prepared = [held.prepared for held in self._held]
        return [of.panels for of in prepared if of is not None and of.panels is not None]

    def refresh(self) -> None:
        """Pack the model's tables as they are now; calls meanwhile read the tables themselves."""
        self._held: tuple[_Packed, ...] = ()
        self._hold({})

    def _hold(self, saved: dict[str, Tensor]) -> None:
        tables, reasons = _tables_of(self._model)
        packing = _packing()
        if packing is None and tables:
            reasons.append("the reference backend reads tables in place")
        held: list[_Packed] = []
        for table in tables:
            before = _Packed.of(table)  # a write while it is packed is a change
            if packing is not None:
                prepared = Prepared(before.table, get_score(str(self.score)))
                prefix = f"{len(held)}."
                its = {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}
                panels = packing.pack(prepared, croppable=self.croppable, saved=its)
                if isinstance(panels, str):
                    reasons.append(panels)
                else:
                    prepared = Prepared(before.table, prepared.score, panels=panels)
                    check_candidates(prepared, None)
                    before = before._replace(prepared=prepared)
            held.append(before)
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
            raise ValueError(f"index: its score is {self.score!r}; the model's is {score!r}")
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
        """Pack the tables again, and write the panels to a safetensors file, whole or not at all.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        from safetensors.torch import save_file

        self.refresh()
        tensors = {
            f"{place}.{name}": tensor
            for place, held in enumerate(self._held)
            if held.prepared is not None and held.prepared.panels is not None
            for name, tensor in sorted(held.prepared.panels.tensors.items())
        }
        text = json.dumps(self._facts(tensors))
        write_whole(path, lambda fresh: save_file(tensors, fresh, {_KEY: text}))

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: RankableModel | BlockScorer) -> Self:
        """Read a file of :meth:`save`, for a model with the same numbers in its tables.

        Raises
        ------
        FileNotFoundError
            If there is no file.
        ValueError
            If the file is damaged, or of another format, score, table or machine.
        """
        from safetensors import safe_open

        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file of an index")
        index = cls.__new__(cls)
        index._open(model, croppable=False)
        with reading(path, "damaged, or no file of an index"), safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
            index.croppable = facts.get("croppable")
            for name, here in index._facts(tensors).items():
                if facts[name] != here:
                    raise ValueError(
                        f"{path}: the {name} of the index is {shown(facts[name])}; here it is "
                        f"{shown(here)}: make the index again"
                    )
            index._hold(tensors)
        return index

    def _facts(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the facts that must be equal in a file and in its reader."""
        packing = _packing()
        return {
            "format": _FORMAT,
            "score": self.score,
            "instruction set": packing and packing.isa(),
            "table": [digest(table) for table in _tables_of(self._model)[0]],
            "checksum of panels": digest(self.croppable, *tensors, *tensors.values()),
            "croppable": self.croppable,
        }

    def __repr__(self) -> str:
        parts = [type(self._model).__name__, str(self.score)]
        for panels in self._panels:
            size = f"{panels.num_rows:,} rows x {panels.num_features:,} features"
            parts += [size, panels.number_format, f"{panels.nbytes / 1e6:,.1f} MB"]
        parts += [] if self._panels else ["holds nothing"]
        parts += [f"not packed: {reason}" for reason in self._not_packed]
        return f"Index({', '.join(parts)})"


def _tables_of(model: Any) -> tuple[list[Tensor], list[str]]:
    """Return the distinct tables of a model, on the CPU, and reasons why others are left out."""
    with evaluating(model), torch.no_grad():
        names = [] if is_in_blocks(model) else SIDES
        names = [side for side in names if blocks_at(model, side, None) is None]
        sides, again = ([candidates_at(model, side, None) for side in names] for _ in range(2))
    if not sides:
        return [], ["it is scored by a function"]
    if not all(_is_same(a.table, b.table) for a, b in zip(sides, again, strict=True)):
        return [], ["its candidates are made anew at every call"]
    tables: list[Tensor] = []
    for candidates in sides:
        table = candidates.table
        if table.device.type != "cpu":
            raise ValueError(
                f"an index serves tables on the CPU; this one is on {table.device}, where the "
                f"sweep reads it in place"
            )
        if candidates.factor is None and not any(_is_same(table, other) for other in tables):
            tables.append(table)
    if any(candidates.factor is not None for candidates in sides):
        return tables, ["its queries are moved by a factor of the candidate"]
    return tables, []


def _packing() -> Any:
    """Return the packing of the backend on the CPU; None where it has none."""
    return getattr(get_backend(backend_for(torch.device("cpu"))), "packing", None)


def _shape(table: Tensor) -> str:
    return f"{list(table.shape)} of {table.dtype}"


def check_index(index: Any, dims: Any) -> None:
    """Check that an index can serve a call."""
    if not isinstance(index, Index):
        raise TypeError(f"index must be a kgfast.Index; got {type(index).__name__}")
    if dims is not None and not index.croppable:
        raise ValueError(
            "index: its features may be in any order, and dims= takes the first ones: "
            "kgfast.Index(model, croppable=True) keeps their order"
        )
