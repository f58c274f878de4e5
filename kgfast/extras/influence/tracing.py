"""TracIn at checkpoints (Pruthi et al. 2020, arXiv 2002.08484, section 3.3: TracInCP).

``influence(z, z') = sum_i rate_i grad l(w_i, z) . grad l(w_i, z')`` over checkpoints ``i``, where
``l`` is the loss of one example in eval mode, without regularizer. Gradients are those of the last
layer: the entity table in its role as candidates, and its biases. The formula describes plain
gradient descent and ignores how Adam and other optimizers scale gradients.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgfast.eval import evaluating, rank
from kgfast.extras.influence.checkpoints import Checkpoints, Stages, stages_of
from kgfast.extras.influence.dense import DenseInfluence
from kgfast.extras.influence.examples import ExampleQueries, Examples, Mode
from kgfast.extras.influence.sampled import SampledInfluence
from kgfast.frames import FRAMES, needed
from kgfast.graph import (
    Triples,
    TriplesLike,
    VocabularyLike,
    as_triples_tensor,
    named_columns,
    names_of,
)
from kgfast.models import CP, SIDES, Reciprocal, Side
from kgfast.ops import check_int, no_autocast
from kgfast.progress import progress_bar
from kgfast.text import shown
from kgfast.training.config import LossConfig

if TYPE_CHECKING:
    from pandas import DataFrame

_EXAMPLES = 1 << 14  # most training examples of a chunk
_SQUARES = 64  # examples whose products with each other are made, for the diagonal
_RANKED, _CHANCE = 256, 0.1  # training triples that are ranked at least; least AMRI


@dataclass(frozen=True)
class Strongest:
    """The k strongest examples of each test triple, the strongest first; ties by the lowest id.

    Attributes
    ----------
    ids : Tensor
        int64 ``[M, k]``, ids of examples.
    values : Tensor
        ``[M, k]``, influences.
    """

    ids: Tensor
    values: Tensor

    @classmethod
    def of(cls, matrix: Tensor, k: int, *, descending: bool) -> "Strongest":
        """Select the k strongest of influences ``[M, T]``."""
        k = min(k, matrix.shape[1])
        values = matrix.new_empty(len(matrix), k)
        ids = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        for row, influences in enumerate(matrix):  # sorting all rows at once takes memory
            best = influences.sort(stable=True, descending=descending)
            values[row], ids[row] = best.values[:k], best.indices[:k]
        return cls(ids, values)


@dataclass(frozen=True, repr=False)
class Influences:
    """Influences of training examples on test triples.

    Attributes
    ----------
    proponents, opponents : Strongest
        The k highest and the k lowest influences: examples with gradients that agree most, and
        disagree most, with the gradient of the test triple. If fewer than k examples are
        proponents, the k highest influences have some below 0. Columns name each by its sign.
    examples : Examples
        The examples that ids refer to.
    test : Tensor
        int64 ``[M, 3]``.
    checkpoints : list of str
    rates : list of float
    matrix : Tensor
        All influences, ``[M, T]``.
    """

    proponents: Strongest
    opponents: Strongest
    examples: Examples
    test: Tensor
    checkpoints: list[str]
    rates: list[float]
    matrix: Tensor

    @property
    def ids(self) -> Tensor:
        """Ids of the proponents, int64 ``[M, k]``."""
        return self.proponents.ids

    @property
    def values(self) -> Tensor:
        """Influences of the proponents, ``[M, k]``, the strongest first."""
        return self.proponents.values

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return a row for each test triple and example, as NumPy columns or lists.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            Entities and relations, to have names instead of ids.

        Returns
        -------
        dict
            ``test`` (row of the test triple), ``kind`` (``proponent`` for influences above 0,
            ``opponent`` below 0, ``neutral`` for 0), ``influence``, ``head``, ``relation``,
            ``tail`` of the example, and the side that the example ``predicts``. If an example is a
            query with all its answers, the predicted entity is ``?`` (-1 without names). Names with
            labels add ``head_label``, ``relation_label`` and ``tail_label``.
        """
        ids = torch.cat([self.proponents.ids, self.opponents.ids], 1)
        influences = torch.cat([self.proponents.values, self.opponents.values], 1).flatten()
        tests = torch.arange(len(ids), dtype=torch.int64, device="cpu").repeat_interleave(
            ids.shape[1]
        )
        triples = self.examples.hrt[ids.flatten()].T.tolist()
        named, labels = named_columns(
            dict(zip(("head", "relation", "tail"), triples, strict=True)), names_of(vocabulary)
        )
        signs = influences.sign().int().tolist()
        return {
            "test": tests.tolist(),
            "kind": [("neutral", "proponent", "opponent")[sign] for sign in signs],
            "influence": influences.tolist(),
            **named,
            "predicts": [self.examples.side_of(example) for example in ids.flatten().tolist()],
            **labels,
        }

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return :meth:`columns` as a pandas DataFrame."""
        frame: DataFrame = needed("pandas", "Influences.to_frame()", FRAMES).DataFrame(
            self.columns(vocabulary)
        )
        return frame

    def __repr__(self) -> str:
        tests, k = self.ids.shape
        return (
            f"Influences of {len(self.examples):,} training examples on {tests:,} test triples "
            f"at {len(self.checkpoints)} checkpoint{'' if len(self.checkpoints) == 1 else 's'}, "
            f"{k} proponents and opponents each"
        )


def tracin(
    checkpoints: Checkpoints,
    train: TriplesLike | None = None,
    test: TriplesLike | None = None,
    *,
    loss: str | LossConfig | None = None,
    mode: Mode | None = None,
    rates: Sequence[float] | None = None,
    side: Side = "tail",
    k: int = 10,
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
        int64 ``[T, 3]``; default: the training triples of the run. Runs with sampled negatives have
        no other ones.
    test : Triples, Tensor or array
        int64 ``[M, 3]``.
    loss : str or LossConfig, optional
        Loss of a model in memory, ``bce`` or ``cross_entropy`` over all entities. A run knows its
        loss, which may also be ``nssa``, ``margin`` or ``logistic``.
    mode : {"1vsall", "kvsall"}, optional
        Mode of a model in memory; ``1vsall`` by default.
    rates : sequence of float, optional
        The learning rate at each checkpoint; default: the rates in the run's log.
    side : {"head", "tail"}
        The side that test triples predict.
    k : int
        Examples per test triple; all, if there are fewer.
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
    >>> influences = tracin(model, train, train[:1], loss="bce", rates=[0.1], k=1)
    >>> influences.ids.tolist()  # itself
    [[0]]
    """
    check_int("k", k, 1)
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {shown(side)}")
    if test is None:
        raise TypeError("tracin() needs test triples")
    tracing = _Tracing(stages_of(checkpoints, loss, mode, rates, device, trust), train)
    hrt = tracing.triples("test", test)
    others, matrix = ExampleQueries.of(hrt, side), tracing.zeros(len(hrt), len(tracing.examples))
    tracing.sum_into(
        matrix, lambda at, examples: at.products(examples, at.others(others)), progress
    )
    tracing.warn_of_chance()
    return Influences(
        Strongest.of(matrix, k, descending=True),
        Strongest.of(matrix, k, descending=False),
        tracing.examples,
        hrt,
        [checkpoint.name for checkpoint in tracing.stages.checkpoints],
        tracing.stages.rates,
        matrix,
    )


def self_influence(
    checkpoints: Checkpoints,
    train: TriplesLike | None = None,
    *,
    loss: str | LossConfig | None = None,
    mode: Mode | None = None,
    rates: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    trust: bool = False,
) -> Tensor:
    """Compute the influence of each training example on itself.

    The influence is high for mislabelled and for rare examples.

    Parameters
    ----------
    checkpoints, train, loss, mode, rates, device, progress, trust
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
    tracing = _Tracing(stages_of(checkpoints, loss, mode, rates, device, trust), train)
    total = tracing.zeros(len(tracing.examples))
    tracing.sum_into(total, _squares, progress)
    return total


def _squares(influence: Any, examples: Any) -> Tensor:
    """Return the product ``[B]`` of each example with itself."""
    blocks = examples.blocks(_SQUARES)
    return torch.cat([influence.products(block, block).diagonal() for block in blocks])


class _Tracing:
    """Training examples, and the checkpoints' models, one in memory at a time."""

    def __init__(self, stages: Stages, train: TriplesLike | None) -> None:
        if train is not None and stages.mode == "negative":
            raise ValueError(
                "train: a run with sampled negatives has negatives of its own training triples "
                "alone; leave train out"
            )
        self.stages = stages
        self._model = stages.checkpoints[0].open()
        table = self._model.candidates("tail")
        table = getattr(table, "table", table)
        self._device: torch.device = table.device
        self._dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
        self._train = self.triples("train", train)
        self.examples = Examples.of(self._train, stages.mode)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def triples(self, name: str, triples: TriplesLike | None) -> Tensor:
        """Check triples and move them to the models' device; the run's are the default."""
        first = self.stages.checkpoints[0]
        if triples is None:
            if first.origin is None:
                raise TypeError(f"{name}: a model does not store its training triples")
            triples = first.origin.graph.split(name).hrt
        sizes: Any = dict(zip(("num_entities", "num_relations"), first.sizes, strict=True))
        sizes["num_times"] = getattr(triples, "num_times", None)
        try:
            hrt = as_triples_tensor(triples, **sizes)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}: {error}") from None
        return hrt.to(self._device)

    def sum_into(self, total: Tensor, values: Callable[..., Tensor], progress: bool) -> None:
        """Add up values ``[..., B]`` of chunks of examples, times the rates of checkpoints."""
        count = len(self.examples) * len(self.stages.rates)
        if not total.numel():
            return
        with progress_bar(progress, "Influences", count) as advance:
            for place, rate in enumerate(self.stages.rates):
                if place:
                    self._model = None  # frees the model before the next is read
                    self._model = self.stages.checkpoints[place].open()
                influence = self._influence(self._model, place)
                with evaluating(self._model), torch.no_grad(), no_autocast(self._device):
                    for ids, queries in self.examples.chunks(_EXAMPLES):
                        examples = influence.training(ids, queries)
                        total[..., ids] += rate * values(influence, examples)
                        advance(len(queries))
        bad = (~total.isfinite()).nonzero()
        if len(bad):
            raise ValueError(
                f"the influence of training example {int(bad[0, -1])} is "
                f"{float(total[tuple(bad[0])])}: a table or an encoder is not finite"
            )

    def _influence(self, model: Any, place: int) -> DenseInfluence | SampledInfluence:
        if isinstance(model.model if isinstance(model, Reciprocal) else model, CP):
            raise TypeError(
                "influences of CP are not served: a row is a head's and a tail's, and a candidate "
                "is half of a row"
            )
        origin = self.stages.checkpoints[place].origin
        if self.stages.mode == "negative" and origin is not None:
            return SampledInfluence(model, origin)
        return DenseInfluence(model, self.stages.loss)

    def warn_of_chance(self) -> None:
        """Warn if the last model ranks training triples little better than chance."""
        some = self._train[:: max(1, len(self._train) // _RANKED)]
        triples = Triples(some, num_times=getattr(self._model, "num_times", None))
        amri = rank(self._model, triples).metrics()["amri"]
        if amri < _CHANCE:
            warnings.warn(
                f"{self.stages.checkpoints[-1].name}: the model ranks its own training triples "
                f"little better than chance (AMRI {amri:.2f}; 0 is chance, 1 is perfect): its "
                f"influences say little",
                RuntimeWarning,
                stacklevel=3,
            )
