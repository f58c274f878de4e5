"""Protocol of a backend: a module that scores, ranks, and carries gradients back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .checks import Checks
from .labels import Bce, CrossEntropy, LossChecks, LossGradients, LossNeed, LossRows, LossTotal
from .operands import Above, Counts, Gradients, Known, Lists, NamedRows, Need, Operands
from .sampled import NegativeGradients, NegativeLoss, NegativeRows, Sampled


class Into(NamedTuple):
    """Tensors in which a loss collects gradients."""

    queries: Tensor | None  # [B, F] of the plan's dtype: added to
    table: Tensor | None  # [N, G] of the table's dtype: overwritten, unless adds_to_table
    adds_to_table: bool = False  # the table, which is then float32, holds a part already
    room: Tensor | None = None  # [B, F], memory for a part of the gradient of queries, overwritten


class AdamStep(NamedTuple):
    """Step of Adam (Kingma & Ba 2015, algorithm 1)."""

    lr: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    # step of the run, from 1, for the bias correction; 0-d on the tables' device
    number: int | Tensor


class AdagradStep(NamedTuple):
    """Step of Adagrad (Duchi et al. 2011)."""

    lr: float
    eps: float
    weight_decay: float


class Composition(NamedTuple):
    """Rule that makes queries from rows of anchors and relations.

    ``kind`` is add, multiply, multiply_complex, or rotate by phases of ``unit`` radians. The
    relation may be conjugated first (the negative is added). Kernels of training do not add.
    """

    kind: str
    conjugates: bool = False
    interleaved: bool = False  # the complex layout
    unit: float = 1.0

    def fits(self, width: int, relation: Tensor) -> bool:
        """Return whether rows of a table are as wide as those of so many numbers need."""
        if self.kind in ("multiply_complex", "rotate") and width % 2:
            return False
        needed = width // 2 if self.kind == "rotate" else width
        return relation.ndim == 2 and relation.shape[1] == needed and not relation.is_neg()


class LossPlan(NamedTuple):
    """Sizes in which a backend cuts losses over all candidates."""

    scratch: int  # most scores of a chunk
    dtype: torch.dtype  # dtype of the scratch, and of sums of gradients of queries
    # Queries that are swept together; None for all. Only float32 tables are served in blocks, since
    # gradients of later queries are added to those of earlier queries.
    num_queries: int | None = None
    kept: int = 0  # most scores that may be stored from a loss to its gradients


class Passes(Protocol):
    """Operations of a loss on scores ``[B, n]``; most operations overwrite the scores."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        """Return sums of ``softplus(x) - c x`` and of ``x``, float64 ``[B]`` each."""
        ...

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        """Make ``scale (sigmoid(x) - c)`` in place, with ``scale [B]``."""
        ...

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`bce_sums`, and do :meth:`bce_slopes`."""
        ...

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        """Update the peak, the sum of ``exp(x - peak)`` and the sum of scores, float64 ``[B]``."""
        ...

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        """Do :meth:`softmax_sums` of whole rows; make ``scale softmax - share`` in place.

        ``sums`` are the sums over no scores; ``scale`` and ``share`` have the scores' dtype,
        ``[B]`` each.
        """
        ...

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        """Make ``scale exp(x - near) - share`` in place, of the scores' dtype ``[B]`` each."""
        ...


class NegativeLosses(Protocol):
    """Losses of sampled negatives."""

    def value(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        keeps: bool,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """Return the loss of every row, or the sum or mean of rows.

        Operands are neither empty nor cropped; for a pool, the rows are the negatives. Ids may be
        out of range: reads are clamped to the table. With ``keeps``, gradients will follow.
        ``check`` is called if an id was clamped, or if a score or a bias is not finite (a bias may
        be -inf). Without ``check`` the host waits for nothing.
        """
        ...

    def gradients(
        self,
        operands: Operands,
        loss: NegativeLoss,
        made: NegativeRows,
        grad: Tensor,
        need: Need,
        *,
        bias: bool = False,
        rows: NamedRows | None = None,
    ) -> NegativeGradients:
        """Return the gradients of :meth:`value`, given that of the loss.

        With ``bias``, the gradient of a pool's biases is needed. ``rows`` are those of
        :meth:`Backend.backward`.
        """
        ...


class Losses(Protocol):
    """Losses over all candidates, which never store all scores.

    Without ``checks``, and in gradients, nothing is checked: wrong labels make results void, but
    nothing is read out of bounds.
    """

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        """Return row losses, by the contract of :func:`kgfast.ops.bce` or ``cross_entropy``.

        With ``keep``, gradients will follow, so a backend may store a few scores.
        """
        ...

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        made: LossRows | None = None,
    ) -> LossGradients:
        """Return the gradients of the sum of row losses times ``weights [B]``.

        Cross entropy needs the result of :meth:`value`; its scores are overwritten.
        """
        ...

    def value_and_gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> LossTotal:
        """Return the sum of row losses, divided, and the gradients."""
        ...

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply up to three contiguous gradients by a factor, in place.

        Nothing is written for a factor of 1 that is known without waiting for a device.
        """
        ...


class Backend(Protocol):
    """Module that scores, ranks, and carries gradients back.

    All arguments are checked, but ``checks`` may still hold checks of values. A backend that waits
    for its device reads these checks then, and at the latest before the return. A score that a
    backend does not know raises.

    A backend may have more, which :func:`kernel_of` finds: ``row_updates`` (steps of optimizers:
    :mod:`.cpu.updates`), ``packing`` (:mod:`.cpu.panels`), ``adversarial`` (:mod:`.cpu.passes`),
    and on GPUs ``compose``, ``filters``, and ``row_sums``, which sums rows with equal ids.
    """

    name: str
    # the backend waits for its device anyway, and then reads the checks of values
    defers_checks: bool
    losses: Losses
    negatives: NegativeLosses
    # precisions of products in losses; operands of others are multiplied in float32
    precisions: tuple[str, ...]

    def rank_counts(
        self,
        operands: Operands,
        targets: Tensor,
        known: Known,
        checks: Checks,
        target_scores: Tensor | None = None,
    ) -> Counts:
        """Count; the contract is that of :func:`kgfast.ops.rank_counts`.

        ``target_scores``, float64 ``[C, B]`` (one crop without ``dims``), are canonical scores of
        targets that need not be rows. Such a target is -1, and no candidate is this target.
        """
        ...

    def topk(
        self, operands: Operands, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """Return the best; the contract is that of :func:`kgfast.ops.topk` with ``pad=True``."""
        ...

    def above(
        self, operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
    ) -> Above | int:
        """Return all candidates of one crop with canonical scores of at least ``lowest``.

        ``lowest`` is float64 ``[B]``. The result is only the number if there are more than
        ``most``.
        """
        ...

    def list_counts(
        self, operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
    ) -> Counts:
        """Do :meth:`rank_counts` for queries with their own candidates."""
        ...

    def list_topk(
        self, operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """Do :meth:`topk` for queries with their own candidates."""
        ...

    def scores(self, operands: Operands, index: Tensor | None = None) -> Tensor:
        """Return scores of all pairs, ``[B, N]``, or of the pairs of an index, ``[B, K]``.

        ``index`` is int64 ``[B, K]``, contiguous. With ``dims`` the result is ``[C, B, *]``.
        """
        ...

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows: NamedRows | None = None,
    ) -> Gradients:
        """Return the gradients of :meth:`scores` that ``need`` names; a bias does not matter.

        With an index and ``rows``, the result has only these rows of table and factor, with ids.
        """
        ...


def kernel_of(backend: Backend, name: str) -> Any:
    """Return a kernel that not all backends have, or None."""
    return getattr(backend, name, None)


class ChunkedBackend(Backend, Protocol):
    """Backend with losses over chunks of scores; see :mod:`kgfast.kernels.losses`."""

    passes: Passes

    def scores(
        self, operands: Operands, index: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        """Do :meth:`Backend.scores`; all pairs without crops go to ``out``, if given.

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
        rows: NamedRows | None = None,
        into: Into | None = None,
    ) -> Gradients:
        """Do :meth:`Backend.backward`; gradients of all pairs go to ``into``."""
        ...

    def loss_plan(self, operands: Operands) -> LossPlan:
        """Return the sizes in which losses over all candidates are cut."""
        ...
