"""Binary cross entropy over all entities: 1-vs-all, or KvsAll (Dettmers et al. 2018, eq. 2)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kgfast import ops
from kgfast.losses.batches import Batch
from kgfast.losses.entities import EntitiesLoss
from kgfast.models import RankableModel
from kgfast.models.base import Side, check_option
from kgfast.ops.checks import check_index, check_share

SmoothingStyle = Literal["torch", "conve", "pykeen"]


@dataclass(frozen=True, kw_only=True)
class BCELoss(EntitiesLoss):
    """Binary cross entropy over all entities (Dettmers et al. 2018, eq. 2).

    One target per query is 1-vs-all, several targets are KvsAll: ``-sum_j y_j log sigmoid(x_j) + (1
    - y_j) log sigmoid(-x_j)`` for the scores ``x`` of each query with every entity and labels
    ``y``, as :func:`torch.nn.functional.binary_cross_entropy_with_logits`.

    Parameters
    ----------
    label_smoothing : float
        Smoothing eps, in ``[0, 1)``.
    smoothing_style : {"torch", "conve", "pykeen"}
        See :func:`kgfast.losses.smoothed_labels`.
    reduction : {"mean", "sum", "none"}
        Mean over all B N labels, sum over all labels, or the sum of each row. The mean over no
        label is 0.
    precision, sparse
        As in :class:`kgfast.losses.EntitiesLoss`.

    Examples
    --------
    >>> import torch
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]]))
    >>> bce(model, [(1, 0, 1)], reduction="none")
    tensor([0.7113])
    >>> loss = BCELoss(reduction="none")
    >>> loss(model, (torch.tensor([1]), torch.tensor([0])), torch.tensor([1]))
    tensor([0.7113])
    """

    takes_several = True
    is_softmax = False
    smoothing_style: SmoothingStyle = "torch"

    def check(self) -> None:
        super().check()
        self.labels(2)

    def labels(self, num_entities: int) -> tuple[float, float]:
        """Return ``a`` and ``c``."""
        return smoothed_labels(self.label_smoothing, self.smoothing_style, num_entities)

    def __call__(
        self,
        model: RankableModel,
        triples: Batch,
        positives: Tensor | tuple[Tensor, Tensor] | None = None,
        *,
        side: Side = "tail",
    ) -> Tensor:
        """Return the loss of queries: a scalar, or ``[B]`` for the reduction ``none``.

        Parameters
        ----------
        model : Model
            Any :class:`kgfast.models.RankableModel`; ``gamma`` is added to scores if given.
        triples : Triples, Tensor, array, or tuple of Tensor
            int64 ``[B, 3]``; or queries ``(anchors, relations)``, int64 ``[B]`` each: heads and
            relations for side ``tail``, tails and relations for ``head``. With inverse relations,
            ids of relations may also name inverses, to predict tails of an inverse relation.
        positives : Tensor or pair of Tensor, optional
            int64 ``[B]``, one true entity per query (1-vs-all); or CSR ``(indptr [B + 1], indices
            [nnz])`` with at least one true entity per query, such as
            :meth:`kgfast.KnownTriples.exclude` returns (KvsAll). None takes the target of each
            triple.
        side : {"head", "tail"}
            The predicted side.

        Raises
        ------
        ValueError, TypeError
            As :func:`kgfast.ops.bce`, and for arguments that do not fit the model.
        """
        batch, queries, arguments = self._read(model, triples, side)
        a, c = self.labels(model.num_entities)
        positives = batch.targets_or("positives", positives)
        if isinstance(positives, Tensor):
            check_index("positives", positives, (len(queries),), queries)
            indptr = torch.arange(len(queries) + 1, dtype=torch.int64, device=queries.device)
            positives = indptr, positives
        if not isinstance(positives, tuple) or len(positives) != 2:
            raise TypeError("positives must be a tensor [B] or a pair (indptr, indices)")
        arguments["positive_indptr"], arguments["positive_indices"] = positives
        count = len(queries) * len(arguments["candidates"])
        return self._reduced(ops.bce, queries, count, **arguments, label_a=a, label_c=c)


bce = BCELoss.function("bce")


def smoothed_labels(
    label_smoothing: float, style: SmoothingStyle, num_candidates: int
) -> tuple[float, float]:
    """Return labels of binary cross entropy as ``(a, c)`` of ``a y + c``, as the field has them.

    ========== ====================== =============
    style      a                      c
    ========== ====================== =============
    ``torch``  1 - eps                eps / N
    ``conve``  1 - eps                1 / N
    ``pykeen`` 1 - eps - eps/(N - 1)  eps / (N - 1)
    ========== ====================== =============

    eps is ``label_smoothing``, in ``[0, 1)``, and N ``num_candidates``. ``conve`` (Dettmers et al.
    2018, official code; LibKGE) adds 1/N for every eps above 0. Without smoothing every style has
    labels 0 and 1.

    Examples
    --------
    >>> smoothed_labels(0.1, "conve", 4)
    (0.9, 0.25)
    """
    check_share("label_smoothing", label_smoothing)
    styles = {
        "torch": (label_smoothing, num_candidates),
        "conve": (1.0, num_candidates),
        "pykeen": (label_smoothing, num_candidates - 1),
    }
    check_option("smoothing_style", style, list(styles))
    if not label_smoothing:
        return 1.0, 0.0
    mass, shares = styles[style]
    if shares < 1:
        raise ValueError(f"smoothing_style {style!r} needs more than {num_candidates} candidates")
    c = mass / shares
    return 1 - label_smoothing - (c if style == "pykeen" else 0.0), c
