"""TracIn at checkpoints (Pruthi et al. 2020, arXiv 2002.08484, section 3.3: TracInCP).

``influence(z, z') = sum_i rate_i grad l(w_i, z) . grad l(w_i, z')`` over checkpoints ``i``, where
``l`` is the loss of one example in eval mode, without regularizer. The formula describes plain
gradient descent and ignores how Adam and other optimizers scale gradients.

The outer loop goes over chunks of training examples, the inner one over checkpoints, so memory is
``[M, chunk]`` for any training set. After each checkpoint of each chunk the state can be saved.
"""

import hashlib
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.eval import evaluating, rank
from kgfast.extras.influence.checkpoints import Checkpoint, Checkpoints, Stages, stages_of
from kgfast.extras.influence.dense import BLOCK, DenseInfluence
from kgfast.extras.influence.results import Influences, Strongest
from kgfast.extras.influence.sampled import SampledInfluence
from kgfast.extras.influence.training_examples import ExampleQueries, Examples, Mode, asked
from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.models import CP, SIDES, Reciprocal, Side
from kgfast.ops import no_autocast
from kgfast.progress import progress_bar
from kgfast.text import shown
from kgfast.time_limit import TimeLimit
from kgfast.training import checkpoint as files
from kgfast.training.config import LossConfig

_EXAMPLES = 1 << 14  # most training examples of a chunk
_CELLS = 1 << 20  # most influences of a chunk

_RANKED, _CHANCE = 256, 0.1  # training triples that are ranked at least; least AMRI

_KINDS = ("proponents", "opponents")

Path_ = str | os.PathLike[str]


def tracin(
    checkpoints: Checkpoints,
    train: TriplesLike | None = None,
    test: TriplesLike | None = None,
    *,
    loss: str | LossConfig | None = None,
    mode: Mode | None = None,
    rates: Sequence[float] | None = None,
    parameters: Literal["entity", "all"] = "entity",
    side: Side = "tail",
    k: int = 10,
    out: Path_ | None = None,
    restart: Path_ | None = None,
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    trust: bool = False,
) -> Influences:
    """Compute influences of training examples on test triples, and the strongest of each.

    A training example is a triple and a side, or with ``kvsall`` a query with all its answers. A
    training step takes the mean of the examples' losses. A test triple is a query on one side, with
    a single answer.

    Parameters
    ----------
    checkpoints
        The folder of a run (the models that ``train.keep_every`` saved; else the best state, or the
        last), the file of a checkpoint, a model, or a list of these.
    train : Triples, Tensor or array, optional
        int64 ``[T, 3]``; default: the training triples of the run. With sampled negatives, a subset
        of these.
    test : Triples, Tensor or array
        int64 ``[M, 3]``.
    loss : str or LossConfig, optional
        ``bce`` or ``cross_entropy`` over all entities; for runs ``nssa``, ``margin`` and
        ``logistic`` too. A run knows its loss and options.
    mode : {"1vsall", "kvsall", "negative"}, optional
        A run knows its mode; the default for models is ``1vsall``.
    rates : sequence of float, optional
        The learning rate at each checkpoint; default: the rates in the run's log.
    parameters : {"entity", "all"}
        ``entity``: the last layer, which is the entity table as candidates, with biases. ``all``:
        all parameters, with anchors, relations and encoder weights.
    side : {"head", "tail"}
        The side that test triples predict.
    k : int
        Examples per test triple; all, if there are fewer.
    out : path, optional
        Path of a NumPy file ``[M, T]`` for all influences.
    restart : path, optional
        A file with the state after each checkpoint of each chunk. A repeated call continues there
        after a kill. The file is deleted at the end.
    minutes : float, optional
        Stop before the block of examples that would end later than that; at least one block is
        seen. ``num_seen`` of the result counts the examples seen; the columns of all other examples
        in ``out`` are NaN. The file ``restart`` stays, and a repeated call continues there.
    device
        Device of models that are read from files.
    progress : bool
        Show a progress bar.
    trust : bool
        See :func:`kgfast.load_run`.

    Returns
    -------
    Influences

    Raises
    ------
    ValueError, TypeError
        For checkpoints of different graphs or losses, a checkpoint without a learning rate, triples
        out of range, a model that is not served, influences that are not finite, or ``minutes``
        that are not above 0.
    FileNotFoundError
        If there is no checkpoint.

    Warns
    -----
    RuntimeWarning
        If the last model ranks training triples little better than chance: an AMRI below 0.1.

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.eye(4), torch.ones(1, 4))
    >>> train = torch.tensor([[0, 0, 0], [2, 0, 2]])
    >>> found = tracin(model, train, train[:1], loss="bce", rates=[0.1], k=1)
    >>> found.ids.tolist()  # itself
    [[0]]
    """
    limit = TimeLimit(minutes)
    stages = stages_of(checkpoints, loss, mode, rates, device, trust)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1; got {shown(k)}")
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {shown(side)}")
    if test is None:
        raise TypeError("tracin() needs test triples")
    sources = _Checkpoints(stages, parameters)
    of_training = sources.triples("train", train)
    examples = Examples.of(of_training, stages.mode)
    hrt = sources.triples("test", test)
    others = asked(hrt, side)
    size = _chunk_size(len(others))
    state = _Restart(restart, _digest_of(stages, parameters, examples.chunks(size), others, k))
    matrix = _Matrix(out, len(others), len(examples), resumes=state.done > 0)
    dtype = sources.dtype
    best = [Strongest.none(len(others), dtype, hrt.device) for _ in range(2)]
    seen, is_over = 0, False
    with progress_bar(progress, "Influences", len(examples) * len(stages.checkpoints)) as advance:
        for number, (ids, queries) in enumerate(examples.chunks(size)):
            total = torch.zeros(len(others), len(queries), dtype=dtype, device=hrt.device)
            if is_over:
                matrix.write(ids, total.fill_(torch.nan))
                continue
            for place, rate in enumerate(stages.rates):
                advance(len(queries))
                step = number * len(stages.rates) + place + 1
                if step < state.done:
                    continue
                if step == state.done:
                    total, best = state.loaded(hrt.device)
                    continue
                with sources.at(place) as influence:
                    total += rate * influence.products(queries, others)
                if place == len(stages.rates) - 1:
                    _check_finite(total, ids)
                    matrix.write(ids, total)
                    best = [
                        found.taking(ids, total, k, descending=descending)
                        for found, descending in zip(best, (True, False), strict=True)
                    ]
                state.keep(step, total, best)
            seen += len(queries)
            if step > state.done:  # skipped after reading the state from the file
                is_over = limit.parts_left() < 1
    if seen == len(examples):
        state.delete()
    sources.warn_of_chance(of_training)
    names = [checkpoint.name for checkpoint in stages.checkpoints]

    def products(asked_of: list[tuple[int, ExampleQueries]]) -> list[Tensor]:
        totals = [torch.zeros(len(part), dtype=dtype, device=hrt.device) for _, part in asked_of]
        for place, rate in enumerate(stages.rates):
            with sources.at(place) as influence:
                for total, (row, part) in zip(totals, asked_of, strict=True):
                    total += rate * influence.products(part, others.part(slice(row, row + 1)))[0]
        return totals

    by_answer = products if stages.mode == "kvsall" else None
    return Influences(
        best[0], best[1], examples, hrt, names, stages.rates, seen, matrix.mapped(), by_answer
    )


def self_influence(
    checkpoints: Checkpoints,
    train: TriplesLike | None = None,
    *,
    loss: str | LossConfig | None = None,
    mode: Mode | None = None,
    rates: Sequence[float] | None = None,
    parameters: Literal["entity", "all"] = "entity",
    device: torch.device | str = "cpu",
    progress: bool = False,
    trust: bool = False,
) -> Tensor:
    """Compute the influence of each training example on itself.

    The influence is high for mislabelled and for rare examples.

    Parameters
    ----------
    checkpoints, train, loss, mode, rates, parameters, device, progress, trust
        See :func:`tracin`.

    Returns
    -------
    Tensor
        ``[T]``, in the order of the examples: first all that predict tails, then heads.

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        See :func:`tracin`.

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult.init(5, 2, dim=4, seed=0)
    >>> self_influence(model, torch.tensor([[0, 0, 1]]), loss="bce", rates=[0.1]).shape
    torch.Size([2])
    """
    stages = stages_of(checkpoints, loss, mode, rates, device, trust)
    sources = _Checkpoints(stages, parameters)
    examples = Examples.of(sources.triples("train", train), stages.mode)
    total = torch.zeros(len(examples), dtype=sources.dtype, device=sources.device)
    with progress_bar(progress, "Influences", len(examples) * len(stages.rates)) as advance:
        for place, rate in enumerate(stages.rates):
            for ids, queries in examples.chunks(_EXAMPLES):
                with sources.at(place) as influence:
                    total[ids] += rate * influence.squares(queries)
                advance(len(queries))
    _check_finite(total[None], torch.arange(len(total), dtype=torch.int64, device=total.device))
    return total


class _Checkpoints:
    """Models of the checkpoints, one in memory at a time, and triples that fit."""

    def __init__(self, stages: Stages, parameters: str) -> None:
        if parameters not in ("entity", "all"):
            raise ValueError(f"parameters must be 'entity' or 'all'; got {shown(parameters)}")
        self._stages, self._parameters = stages, parameters
        self._held: tuple[int, Any, DenseInfluence | SampledInfluence] | None = None
        model, _ = self._opened(0)
        table = model.candidates("tail")
        table = getattr(table, "table", table)
        self.device: torch.device = table.device
        self.dtype = torch.float64 if table.dtype == torch.float64 else torch.float32

    def triples(self, name: str, given: TriplesLike | None) -> Tensor:
        """Check triples and move them to the models' device; the run's are the default."""
        first = self._stages.checkpoints[0]
        if given is None:
            if first.origin is None:
                raise TypeError(f"{name}: a model does not store its training triples")
            given = first.origin.graph.splits[name]
        num_entities, num_relations = first.sizes
        try:
            hrt = as_triples_tensor(given, num_entities=num_entities, num_relations=num_relations)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from None
        return hrt.to(self.device)

    @contextmanager
    def at(self, place: int) -> Iterator[DenseInfluence | SampledInfluence]:
        """Yield the inner products at a checkpoint; the model is in eval mode meanwhile."""
        model, influence = self._opened(place)
        with evaluating(model), torch.no_grad(), no_autocast(self.device):
            yield influence

    def warn_of_chance(self, train: Tensor) -> None:
        """Warn if the last model ranks training triples little better than chance."""
        model, _ = self._opened(len(self._stages.rates) - 1)
        amri = rank(model, train[:: max(1, len(train) // _RANKED)]).amri
        if amri < _CHANCE:
            warnings.warn(
                f"the model at {self._stages.checkpoints[-1].name} ranks its own training triples "
                f"little better than chance (AMRI {amri:.2f}; 0 is chance, 1 is perfect): its "
                f"influences say little",
                RuntimeWarning,
                stacklevel=3,
            )

    def _opened(self, place: int) -> tuple[Any, DenseInfluence | SampledInfluence]:
        if self._held is None or self._held[0] != place:
            self._held = None  # frees the model before the next is read
            checkpoint, stages = self._stages.checkpoints[place], self._stages
            model = checkpoint.open()
            self._held = place, model, _influence(checkpoint, model, stages, self._parameters)
        return self._held[1], self._held[2]


def _influence(
    checkpoint: Checkpoint, model: Any, stages: Stages, parameters: str
) -> DenseInfluence | SampledInfluence:
    inner = model.model if isinstance(model, Reciprocal) else model
    if isinstance(inner, CP):
        raise TypeError(
            "influences of CP are not served: a row is a head's and a tail's, and a candidate is "
            "half of a row"
        )
    if stages.mode != "negative":
        return DenseInfluence(model, stages.loss, parameters)
    assert checkpoint.origin is not None
    return SampledInfluence(model, stages.loss, parameters, checkpoint.origin)


def _check_finite(values: Tensor, ids: Tensor) -> None:
    """Check that influences ``[M, B]`` of examples ``[B]`` are finite."""
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        test, example = bad[0].tolist()
        raise ValueError(
            f"the influence of training example {int(ids[example])} on test triple {test} is "
            f"{float(values[test, example])}: a table or an encoder is not finite"
        )


def _chunk_size(tests: int) -> int:
    """Return the number of training examples of a chunk: full blocks, if one fits."""
    size = min(_EXAMPLES, max(1, _CELLS // max(1, tests)))
    return size // BLOCK * BLOCK or size


def _digest_of(
    stages: Stages,
    parameters: str,
    chunks: Iterable[tuple[Tensor, ExampleQueries]],
    others: ExampleQueries,
    k: int,
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digests = [checkpoint.digest for checkpoint in stages.checkpoints]
    said = (digests, stages.rates, stages.loss, stages.mode, parameters, others.side, k)
    digest.update(repr(said).encode())
    for ids, queries in itertools.chain([(None, others)], chunks):
        for column in (ids, queries.anchors, queries.relations, queries.targets):
            data = b"" if column is None else column.cpu().contiguous().numpy().tobytes()
            digest.update(data + b"|")
    return digest.hexdigest()


@dataclass
class _Restart:
    """File from which an interrupted call continues; None stores nothing.

    Raises ValueError if the file belongs to another call, or is damaged.
    """

    path: Path_ | None
    digest: str
    done: int = 0

    def __post_init__(self) -> None:
        if self.path is None or not Path(self.path).exists():
            return
        _, meta = files.load(self.path)
        if meta.get("influences") != self.digest:
            raise ValueError(
                f"{self.path} is the state of another call: delete the file to begin anew"
            )
        self.done = int(meta["done"])

    def keep(self, done: int, total: Tensor, best: Sequence[Strongest]) -> None:
        """Write the state; the state before stays whole until this one is."""
        if self.path is None:
            return
        tensors = {"total": total}
        for name, found in zip(_KINDS, best, strict=True):
            tensors |= {f"{name}.ids": found.ids, f"{name}.values": found.values}
        files.save(self.path, tensors, {"influences": self.digest, "done": done})

    def loaded(self, device: torch.device) -> tuple[Tensor, list[Strongest]]:
        """Read the sums of the chunk, and the strongest so far."""
        assert self.path is not None
        tensors, _ = files.load(self.path)
        held = {name: tensor.to(device) for name, tensor in tensors.items()}
        best = [Strongest(held[f"{name}.ids"], held[f"{name}.values"]) for name in _KINDS]
        return held["total"], best

    def delete(self) -> None:
        """Delete the file when the call is done."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)


class _Matrix:
    """All influences in a NumPy file, column by column, written in parts."""

    def __init__(self, path: Path_ | None, rows: int, columns: int, *, resumes: bool) -> None:
        self._path, self._shape, self._file = path, (rows, columns), None
        if path is None:
            return
        mode: Literal["r+", "w+"] = "r+" if resumes else "w+"
        shape, dtype = self._shape, np.float32
        self._file = np.lib.format.open_memmap(
            path, mode=mode, dtype=dtype, shape=shape, fortran_order=True
        )
        if self._file.shape != shape:
            raise ValueError(f"{path} has shape {list(self._file.shape)}, not {list(shape)}")

    def write(self, ids: Tensor, values: Tensor) -> None:
        if self._file is not None:
            self._file.T[ids.cpu().numpy()] = values.T.float().cpu().numpy()
            self._file.flush()

    def mapped(self) -> Tensor | None:
        return None if self._file is None else torch.from_numpy(self._file)
