"""The protocol of a backend: a module that scores, ranks, and carries gradients back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .checks import Checks
from .labels import (
    Ahead,
    BceRows,
    BceTotal,
    CrossEntropyBackward,
    CrossEntropyRows,
    Labels,
    LossChecks,
    LossGradients,
    LossNeed,
)
from .negatives import NegativeLoss, NegativeRows, Sampled
from .operands import Counts, Gradients, Known, Lists, Need, Operands, Prepared
from .panels import Panels


class Into(NamedTuple):
    """Where a loss collects gradients.

    Attributes
    ----------
    queries : Tensor or None
        ``[B, F]`` of the plan's dtype: added to.
    table : Tensor or None
        ``[N, G]`` of the table's dtype: overwritten, unless ``adds_to_table``.
    adds_to_table : bool
        Whether the table's, which is float32 then, holds a part already.
    """

    queries: Tensor | None
    table: Tensor | None
    adds_to_table: bool = False


class AdamStep(NamedTuple):
    """A step of Adam (Kingma & Ba 2015, algorithm 1)."""

    lr: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    number: int  # of the run, from 1: for the bias correction


class AdagradStep(NamedTuple):
    """A step of Adagrad (Duchi et al. 2011)."""

    lr: float
    eps: float
    weight_decay: float


RowAdam = Callable[[Sequence[Tensor], Tensor, Tensor, AdamStep], None]
"""``row_adam(tables, ids, gradients, step)``, the contract of :func:`kgfast.ops.row_adam`."""
Adagrad = Callable[[Tensor, Tensor, Tensor, AdagradStep], None]
"""``adagrad(parameter, sums, gradient, step)``, the contract of :func:`kgfast.ops.adagrad`."""


class LossPlan(NamedTuple):
    """How the losses over all candidates are cut for a backend.

    Attributes
    ----------
    scratch : int
        Scores that a chunk may hold.
    dtype : torch.dtype
        Of the scratch and of the sums that gradients of queries are collected in.
    num_queries : int or None
        Queries that are swept together; None for all. Only float32 tables are served so, as the
        gradients of later queries are added to those of earlier ones.
    kept : int
        Scores that may be kept from a loss to its gradients.
    """

    scratch: int
    dtype: torch.dtype
    num_queries: int | None = None
    kept: int = 0


class Passes(Protocol):
    """What a loss does to scores ``[B, n]``: overwrites them, but where it says otherwise."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        """Sums of ``softplus(x) - c x`` and of ``x``, float64 ``[B]`` each."""
        ...

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        """In place ``scale (sigmoid(x) - c)``, with ``scale [B]``."""
        ...

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`bce_sums` returns; in place what :meth:`bce_slopes` makes."""
        ...

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        """Carry on, in place, the highest score, the sum of ``exp(x - peak)`` and that of scores.

        Float64 ``[B]`` each.
        """
        ...

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        """:meth:`softmax_sums` of whole rows, ``sums`` of nothing being given to it.

        In place ``scale`` times the softmax, less ``share``, of the scores' dtype ``[B]`` each.
        """
        ...

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        """In place ``scale exp(x - near) - share``, of the scores' dtype ``[B]`` each."""
        ...


class Adversarial(Protocol):
    """Rows of scores weighted by their own softmax, fused."""

    def rows(self, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
        """The contract of :func:`kgfast.ops.adversarial_rows`.

        Also the highest score of each row, and the sum of its weights relative to that; of the
        scores' dtype.
        """
        ...

    def backward(
        self, grad_rows: Tensor, scores: Tensor, peaks: Tensor, masses: Tensor, alpha: float
    ) -> Tensor:
        """The gradient of the scores, a new tensor."""
        ...


class NegativeLosses(Protocol):
    """Losses of sampled negatives, reduced where their scores arise."""

    def rows(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        keeps: bool,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """What the negatives of every row add to its loss.

        Parameters
        ----------
        operands : Operands
            Neither empty nor cropped. Of a pool: its rows are the negatives.
        sampled : Sampled
            Ids may be out of range: what is read is forced into the table.
        loss : NegativeLoss
        keeps : bool
            Whether a backward will follow.
        check : callable or None
            Called if an id was forced, or a score or a bias is not finite, but for a bias of -inf.
            Without it the host waits for nothing.
        """
        ...

    def gradients(
        self,
        operands: Operands,
        loss: NegativeLoss,
        made: NegativeRows,
        grads: tuple[Tensor, Tensor],
        need: Need,
        *,
        bias: bool = False,
        rows_only: bool = False,
    ) -> tuple[Gradients, Tensor | None]:
        """The gradients of :meth:`rows`, and of the biases of a pool ``[K]`` if ``bias``.

        ``grads``: those of the rows and, of lists, of the positives, ``[B]`` each. ``rows_only``
        as of :meth:`Backend.backward`. The positives of a pool are not differentiated here.
        """
        ...


class Losses(Protocol):
    """Losses over all candidates, which never hold all scores.

    Without ``checks``, and in a backward, nothing is checked: labels that are not as they should be
    make results void, but nothing is read out of bounds.
    """

    def bce(self, operands: Operands, labels: Labels, checks: LossChecks | None = None) -> BceRows:
        """Binary cross entropy; the contract of :func:`kgfast.ops.bce`."""
        ...

    def bce_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> LossGradients:
        """The gradients of :meth:`bce`, given that of the rows ``[B]``."""
        ...

    def bce_total(
        self,
        operands: Operands,
        labels: Labels,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> BceTotal:
        """The sum of the rows of :meth:`bce`, divided, and its gradients."""
        ...

    def cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
        ahead: Ahead | None = None,
    ) -> CrossEntropyRows:
        """Softmax cross entropy; the contract of :func:`kgfast.ops.cross_entropy`.

        ``keep``: gradients will be asked for, so that a backend that gains by it may keep the
        scores, if they are few. ``ahead``: most likely these; it may make them at once.
        """
        ...

    def cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        """The gradients of :meth:`cross_entropy`."""
        ...

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """In place ``factor`` times up to three contiguous gradients.

        Nothing is written where it is 1, if that can be told without waiting for a device.
        """
        ...


class Packing(Protocol):
    """How candidates are packed for many calls, and which panels are read."""

    def pack(self, candidates: Prepared, *, croppable: bool = False) -> Panels | str:
        """The panels of all rows, or why there are none: the table is read in place then.

        ``croppable``: those that serve crops, too.
        """
        ...

    def reads(self, panels: Panels) -> bool:
        """Whether this machine reads panels of that format and shape."""
        ...


class Backend(Protocol):
    """Where a sweep runs.

    All arguments are checked; what depends on values may still be kept by ``checks``, which a
    backend that waits for its device reads then, and at the latest before it returns. A backend
    raises for a score that it does not know.

    Attributes
    ----------
    name : str
    defers_checks : bool
        Whether it waits for its device anyway, so that checks of values are best read then.
    losses : Losses
        Its losses over all candidates.
    adversarial : Adversarial or None
        Where it fuses the adversarial loss of scores, how.
    negatives : NegativeLosses or None
        Where it fuses losses of sampled negatives, how.
    row_adam : RowAdam or None
    adagrad : Adagrad or None
    packing : Packing or None
        Where it reads candidates that were packed before, how they are packed.
    """

    name: str
    defers_checks: bool
    losses: Losses
    adversarial: Adversarial | None
    negatives: NegativeLosses | None
    packing: Packing | None

    @property
    def row_adam(self) -> RowAdam | None:
        """See the class."""
        ...

    @property
    def adagrad(self) -> Adagrad | None:
        """See the class."""
        ...

    def bf16_losses(self) -> Losses | None:
        """Return the losses of ``dot`` with operands of precision ``bf16``, where it has them."""
        ...

    def rank_counts(
        self,
        operands: Operands,
        targets: Tensor,
        known: Known,
        checks: Checks,
        target_scores: Tensor | None = None,
    ) -> Counts:
        """The contract of :func:`kgfast.ops.rank_counts`; see there.

        ``target_scores``, float64 ``[C, B]`` with one crop where none is asked for, are canonical
        scores of targets that need not be rows: such a target is -1, and no candidate is it.
        """
        ...

    def topk(
        self, operands: Operands, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """The contract of :func:`kgfast.ops.topk` with ``pad=True``; see there."""
        ...

    def list_counts(
        self, operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
    ) -> Counts:
        """:meth:`rank_counts` where each query has candidates of its own."""
        ...

    def list_topk(
        self, operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """:meth:`topk` where each query has candidates of its own."""
        ...

    def scores(self, operands: Operands, index: Tensor | None = None) -> Tensor:
        """Scores of all pairs, or of the pairs that ``index [B, K]`` names.

        Parameters
        ----------
        operands : Operands
        index : Tensor, optional
            int64 ``[B, K]``, contiguous: the rows that each query is scored with.

        Returns
        -------
        Tensor
            ``[B, N]`` or ``[B, K]``, with ``dims`` ``[C, B, *]``.
        """
        ...

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows_only: bool = False,
        within: slice | None = None,
        besides: Tensor | None = None,
    ) -> Gradients:
        """The gradients of :meth:`scores`, where those of its result are ``grad``.

        Parameters
        ----------
        operands, index
            As of :meth:`scores`; a bias does not matter.
        grad : Tensor
            As the result of :meth:`scores`.
        need : Need
            Which gradients to make.
        rows_only : bool
            With an index: give the rows of table and factor that it names, and their ids, instead
            of whole gradients.
        within : slice, optional
            Give only those of such rows whose ids lie in it, with the bits that they have among
            all.
        besides : Tensor, optional
            int64 ``[*]``: more ids whose rows are given; zeros, where the index does not name them.
        """
        ...


class ChunkedBackend(Backend, Protocol):
    """A backend whose losses go over chunks of scores; see :mod:`kgfast.kernels.sweeps`.

    Attributes
    ----------
    passes : Passes
        Its losses' passes over a scratch.
    """

    passes: Passes

    def scores(
        self, operands: Operands, index: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        """As of any backend; without an index and crops in ``out``, where it is given.

        ``out`` is ``[B, N]`` of the plan's dtype, contiguous.
        """
        ...

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows_only: bool = False,
        within: slice | None = None,
        besides: Tensor | None = None,
        into: Into | None = None,
    ) -> Gradients:
        """As of any backend; without an index and crops the gradients go where ``into`` says."""
        ...

    def loss_plan(self, operands: Operands) -> LossPlan:
        """How losses over all candidates are cut."""
        ...
