"""Protocol of a backend: a module that scores, ranks, and carries gradients back."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .checks import Checks
from .operands import Above, Counts, Gradients, Known, Lists, NamedRows, Need, Operands


class Into(NamedTuple):
    """Tensors in which a loss collects gradients."""

    queries: Tensor | None  # [B, F] of the plan's dtype: added to
    table: Tensor | None  # [N, G] of the table's dtype: overwritten, unless adds_to_table
    adds_to_table: bool = False  # the table, then float32, holds a part of the gradient already


class AdamStep(NamedTuple):
    """Step of Adam (Kingma & Ba 2015, algorithm 1).

    On a GPU ``lr`` may be float32 0-d on the tables' device, as in :class:`AdagradStep`.
    """

    lr: float | Tensor
    betas: Sequence[float]
    eps: float
    weight_decay: float
    # step of the run, from 1, for the bias correction; a tensor as lr
    number: int | Tensor


class AdagradStep(NamedTuple):
    """Step of Adagrad (Duchi et al. 2011)."""

    lr: float | Tensor
    eps: float
    weight_decay: float


class Composition(NamedTuple):
    """Rule that makes queries from rows of anchors and relations.

    ``kind`` is add, multiply, multiply_complex, or rotate by phases of ``unit`` radians. The
    relation may be conjugated first (the negative is added). Kernels of training take complex
    numbers alone.
    """

    kind: str
    conjugates: bool = False
    interleaved: bool = False  # the complex layout
    unit: float = 1.0

    def fits(self, width: int, relation: Tensor) -> bool:
        """Return whether anchors of ``width`` numbers fit the rows of ``relation``."""
        if self.kind in ("multiply_complex", "rotate") and width % 2:
            return False
        needed = width // 2 if self.kind == "rotate" else width
        return relation.ndim == 2 and relation.shape[1] == needed and not relation.is_neg()


class Backend(Protocol):
    """Module that scores, ranks, and carries gradients back.

    All arguments are checked, but ``checks`` may still hold checks of values, which a backend reads
    before the return. Ids and row pointers are contiguous. An unknown score raises.

    Some backends have more: ``row_updates`` (:mod:`.cpu.updates`), ``packing``
    (:mod:`.cpu.panels`), ``negatives`` (:mod:`.cpu.negatives`), which fuses losses of sampled
    negatives, and on GPUs ``compose``, ``filters``, and ``row_sums``, which sums rows with equal
    ids.

    If a backend's losses are those of :class:`.losses.Losses`, ``scores`` also takes ``out``, ``[B,
    N]`` of the plan's dtype and contiguous, and ``backward`` takes ``into`` (:class:`Into`), for
    all pairs without crops. Such a backend has ``passes`` (:class:`.passes.Passes`).
    """

    name: str
    # the backend waits for its device anyway, and then reads the checks of values
    defers_checks: bool
    losses: Any  # :class:`.losses.Losses`, whose module reads this one
    # precisions of products in losses; operands of others are multiplied in float32
    precisions: tuple[str, ...]

    def rank_counts(
        self,
        operands: Operands,
        targets: Tensor,
        known: Known,
        checks: Checks,
        target_scores: Tensor | None = None,
        lists: Lists | None = None,
    ) -> Counts:
        """Count like :func:`kgfast.ops.rank_counts`.

        ``target_scores``, float64 ``[C, B]`` (one crop without ``dims``), are canonical scores of
        targets that need not be rows. Such a target is -1, and no candidate is this target. Without
        ``target_scores``, ``lists`` may have the candidates of each query.
        """
        ...

    def topk(
        self,
        operands: Operands,
        k: int,
        known: Known | None,
        checks: Checks,
        lists: Lists | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the best answers like :func:`kgfast.ops.topk` with ``pad=True``.

        ``lists`` may have the candidates of each query.
        """
        ...

    def above(
        self, operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
    ) -> Above | None:
        """Return the candidates of one crop with canonical scores of at least ``lowest``.

        ``lowest`` is float64 ``[B]``. The result is None if there are more than ``most``.
        """
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
