"""TracIn at checkpoints (Pruthi et al. 2020, arXiv 2002.08484, section 3.3: TracInCP).

``influence(z, z') = sum_i rate_i grad l(w_i, z) . grad l(w_i, z')`` over checkpoints ``i``, where
``l`` is the loss of one example in eval mode, without regularizer. The formula describes plain
gradient descent and ignores how Adam and other optimizers scale gradients.

The outer loop goes over chunks of training examples, the inner one over checkpoints, so memory is
``[M, chunk]`` for any training set.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.eval import evaluating, rank
from kgfast.extras.influence.checkpoints import Checkpoints, Stages, stages_of
from kgfast.extras.influence.dense import DenseInfluence
from kgfast.extras.influence.examples import ExampleQueries, Examples, Mode
from kgfast.extras.influence.results import Influences, Strongest
from kgfast.extras.influence.sampled import SampledInfluence
from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.models import CP, SIDES, Reciprocal, Side
from kgfast.ops import no_autocast
from kgfast.progress import progress_bar
from kgfast.text import shown
from kgfast.training.config import LossConfig

_EXAMPLES = 1 << 14  # most training examples of a chunk
_CELLS = 1 << 20  # most influences of a chunk
_RANKED, _CHANCE = 256, 0.1  # training triples that are ranked at least; least AMRI


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
    out: str | os.PathLike[str] | None = None,
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
        out of range, a model that is not served, or influences that are not finite.
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
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1; got {shown(k)}")
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {shown(side)}")
    if test is None:
        raise TypeError("tracin() needs test triples")
    models = _Models(stages_of(checkpoints, loss, mode, rates, device, trust), parameters)
    stages, of_training = models.stages, models.triples("train", train)
    hrt = models.triples("test", test)
    examples, others = Examples.of(of_training, stages.mode), ExampleQueries.of(hrt, side)
    size = min(_EXAMPLES, max(1, _CELLS // max(1, len(others))))
    matrix = None
    if out is not None:
        shape = len(others), len(examples)
        matrix = np.lib.format.open_memmap(out, "w+", np.float32, shape, fortran_order=True)
    best = [Strongest.none(len(others), models.dtype, models.device) for _ in range(2)]
    with progress_bar(progress, "Influences", len(examples) * len(stages.rates)) as advance:
        for ids, queries in examples.chunks(size):
            total = models.zeros(len(others), len(queries))
            for place, rate in enumerate(stages.rates):
                with models.at(place) as influence:
                    total += rate * influence.products(queries, others)
                advance(len(queries))
            _check_finite(total, ids)
            if matrix is not None:
                matrix.T[ids.cpu().numpy()] = total.T.float().cpu().numpy()
            best = [
                found.taking(ids, total, k, descending=descending)
                for found, descending in zip(best, (True, False), strict=True)
            ]
    models.warn_of_chance(of_training)

    return Influences(
        best[0],
        best[1],
        examples,
        hrt,
        [checkpoint.name for checkpoint in stages.checkpoints],
        stages.rates,
        None if matrix is None else torch.from_numpy(matrix),
        lambda pairs: models.products(pairs, others),
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
    models = _Models(stages_of(checkpoints, loss, mode, rates, device, trust), parameters)
    rates_of = models.stages.rates
    examples = Examples.of(models.triples("train", train), models.stages.mode)
    total = models.zeros(len(examples))
    with progress_bar(progress, "Influences", len(examples) * len(rates_of)) as advance:
        for place, rate in enumerate(rates_of):
            for ids, queries in examples.chunks(_EXAMPLES):
                with models.at(place) as influence:
                    total[ids] += rate * influence.squares(queries)
                advance(len(queries))
    _check_finite(total[None], torch.arange(len(total), dtype=torch.int64, device=total.device))
    return total


class _Models:
    """Models of the checkpoints, one in memory at a time, and triples that fit."""

    def __init__(self, stages: Stages, parameters: str) -> None:
        if parameters not in ("entity", "all"):
            raise ValueError(f"parameters must be 'entity' or 'all'; got {shown(parameters)}")
        self.stages, self._parameters = stages, parameters
        self._held: tuple[int, Any, DenseInfluence | SampledInfluence] | None = None
        table = self._opened(0)[0].candidates("tail")
        table = getattr(table, "table", table)
        self.device: torch.device = table.device
        self.dtype = torch.float64 if table.dtype == torch.float64 else torch.float32

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def triples(self, name: str, given: TriplesLike | None) -> Tensor:
        """Check triples and move them to the models' device; the run's are the default."""
        first = self.stages.checkpoints[0]
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

    def products(
        self, pairs: list[tuple[int, ExampleQueries]], others: ExampleQueries
    ) -> list[Tensor]:
        """Return influences of examples on one of the others each, given by its row."""
        totals = [self.zeros(len(part)) for _, part in pairs]
        for place, rate in enumerate(self.stages.rates):
            with self.at(place) as influence:
                for total, (row, part) in zip(totals, pairs, strict=True):
                    total += rate * influence.products(part, others.part(slice(row, row + 1)))[0]
        return totals

    def warn_of_chance(self, train: Tensor) -> None:
        """Warn if the last model ranks training triples little better than chance."""
        model, _ = self._opened(len(self.stages.rates) - 1)
        amri = rank(model, train[:: max(1, len(train) // _RANKED)]).amri
        if amri < _CHANCE:
            warnings.warn(
                f"the model at {self.stages.checkpoints[-1].name} ranks its own training triples "
                f"little better than chance (AMRI {amri:.2f}; 0 is chance, 1 is perfect): its "
                f"influences say little",
                RuntimeWarning,
                stacklevel=3,
            )

    def _opened(self, place: int) -> tuple[Any, DenseInfluence | SampledInfluence]:
        if self._held is None or self._held[0] != place:
            self._held = None  # frees the model before the next is read
            checkpoint = self.stages.checkpoints[place]
            model, loss = checkpoint.open(), self.stages.loss
            if isinstance(model.model if isinstance(model, Reciprocal) else model, CP):
                raise TypeError(
                    "influences of CP are not served: a row is a head's and a tail's, and a "
                    "candidate is half of a row"
                )
            influence: DenseInfluence | SampledInfluence
            if self.stages.mode == "negative":
                assert checkpoint.origin is not None
                influence = SampledInfluence(model, loss, self._parameters, checkpoint.origin)
            else:
                influence = DenseInfluence(model, loss, self._parameters)
            self._held = place, model, influence
        return self._held[1], self._held[2]


def _check_finite(values: Tensor, ids: Tensor) -> None:
    """Check that influences ``[M, B]`` of examples ``[B]`` are finite."""
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        test, example = bad[0].tolist()
        raise ValueError(
            f"the influence of training example {int(ids[example])} on test triple {test} is "
            f"{float(values[test, example])}: a table or an encoder is not finite"
        )
