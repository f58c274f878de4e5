"""Softmax cross entropy over all entities, 1-vs-all (Lacroix et al. 2018, eq. 3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kgfast import ops
from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.losses.batches import Batch
from kgfast.losses.entities import EntitiesLoss
from kgfast.losses.loss import check_weights, reduced
from kgfast.models import RankableModel
from kgfast.models.base import Side
from kgfast.ops.values import check_ids


@dataclass(frozen=True, kw_only=True)
class CrossEntropyLoss(EntitiesLoss):
    """Softmax cross entropy over all entities, 1-vs-all (Lacroix et al. 2018, eq. 3).

    ``logsumexp(x) - (1 - eps) x_target - (eps / N) sum_j x_j`` for the scores ``x`` of each query
    with every entity, as ``torch.nn.functional.cross_entropy``. Gamma cancels, so gamma is left
    out.

    Parameters
    ----------
    label_smoothing : float
        eps, in ``[0, 1)``.
    reduction : {"mean", "sum", "none"}
        Weighted mean or weighted sum over rows, or the weighted rows. The mean over no row, or
        over weights that are all 0, is 0.
    precision, sparse
        As in :class:`kgfast.losses.EntitiesLoss`.

    Examples
    --------
    >>> import torch
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> cross_entropy(model, [(1, 0, 1)])
    tensor(0.3133)
    >>> CrossEntropyLoss(label_smoothing=0.1).label_smoothing
    0.1
    """

    takes_several = False
    is_softmax = True

    def labels(self, num_entities: int) -> tuple[float, float]:
        """Return ``a`` and ``c``."""
        return 1 - self.label_smoothing, self.label_smoothing / num_entities

    def __call__(
        self,
        model: RankableModel,
        triples: Batch,
        targets: Tensor | None = None,
        *,
        side: Side = "tail",
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of queries: a scalar, or ``[B]`` for the reduction ``none``.

        Parameters and errors are those of :func:`bce`, and these.

        Parameters
        ----------
        targets : Tensor, optional
            int64 ``[B]``, the true entity of each query. None takes the target of each triple.
        weights : Tensor, optional
            ``[B]``, finite and at least 0, such as ``frequency_weights(triples,
            num_entities)[targets]``: see :func:`kgfast.losses.frequency_weights`. A weight
            multiplies the whole row, also its smoothed part, which torch weighs by class. Weights
            cost a second pass over the candidates.
        """
        batch, queries, arguments = self._read(model, triples, side)
        arguments["targets"] = batch.targets_or("targets", targets)
        arguments["label_smoothing"] = self.label_smoothing
        if weights is None:
            return self._reduced(ops.cross_entropy, queries, len(queries), **arguments)
        check_weights(weights, queries[:, 0])
        rows = ops.cross_entropy(queries, **arguments)
        return reduced(rows * weights, weights.double().sum(), self.reduction)


cross_entropy = CrossEntropyLoss.function("cross_entropy")


def frequency_weights(triples: TriplesLike, num_entities: int) -> Tensor:
    """Return weights of targets, float32 ``[N]``, by how common they are (Zhang et al. 2020).

    Weights are ``0.1 + 0.9 count(e) / max count``, as in the official code, where an entity counts
    once for each triple that it heads and once for each that it ends. ``triples`` are int64
    ``[T, 3]``, at least one. A ValueError names an entity that is not in ``0 .. N - 1``.

    Examples
    --------
    >>> frequency_weights([(0, 0, 1), (0, 0, 2)], 4)
    tensor([1.0000, 0.5500, 0.5500, 0.1000])
    """
    hrt = as_triples_tensor(triples)
    if not len(hrt):
        raise ValueError("triples: need at least one")
    check_ids("heads", hrt[:, 0], num_entities)
    check_ids("tails", hrt[:, 2], num_entities)
    counts = torch.bincount(hrt[:, [0, 2]].flatten(), minlength=num_entities).double()
    return (0.1 + 0.9 * counts / counts.max()).float()
