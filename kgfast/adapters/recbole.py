"""RecBole's full-sort evaluation (Zhao et al. 2021; recbole 1.2), without a matrix of scores.

kgfast.adapters.recbole.attach(trainer)

The trainer then evaluates by streamed scores, also in ``fit``. RecBole itself is not imported.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kgfast import ops
from kgfast.text import shown

__all__ = ["attach"]

_PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)


def attach(trainer: Any) -> Any:
    """Let a trainer of RecBole evaluate by streamed scores.

    Most models have a ``full_sort_predict`` that returns a product ``[users, D] @ [D, items]``;
    these are swept. RecBole scores other models itself, in a matrix, with one warning. Items in the
    history of a user, and RecBole's padding, item 0, are no candidates. Scores are canonical
    (docs/explanation/exactness.md), and the lowest id comes first among equals.

    Parameters
    ----------
    trainer : recbole.trainer.Trainer
        The trainer; two methods of this object are replaced.

    Returns
    -------
    Trainer
        This trainer.

    Raises
    ------
    TypeError
        For another object.
    ValueError
        If a metric needs all scores, such as ``AUC`` of a labelled evaluation.
    """
    collector = getattr(trainer, "eval_collector", None)
    if collector is None or not hasattr(trainer, "_full_sort_batch_eval"):
        raise TypeError(f"trainer must be a recbole.trainer.Trainer; got {shown(trainer)}")
    if collector.register.need("rec.score"):
        raise ValueError(
            "trainer: a metric of its config needs all scores, which kgfast never stores; metrics "
            "of ranking do not"
        )
    trainer._full_sort_batch_eval = _Scoring(trainer, trainer._full_sort_batch_eval)
    collector.eval_batch_collect = _Collecting(collector, collector.eval_batch_collect)
    return trainer


class _Product(NamedTuple):
    """Scores of a batch that are not computed: vectors of users and items, and masked items."""

    queries: Tensor  # [B, D]
    items: Tensor  # [N, D]
    indptr: Tensor  # [B + 1], the items that each user knows
    known: Tensor

    def topk(self, k: int) -> Tensor:
        """Return the ids ``[B, k]`` of the best items; 0 if a user has fewer left."""
        ids = ops.topk(
            self.queries,
            self.items,
            k,
            self.indptr,
            self.known,
            candidate_ids=self._candidates(),
            pad=True,
        )[1]
        return ids.clamp(min=0)

    def mean_ranks(self, users: Tensor, items: Tensor) -> Tensor:
        """Return ranks of items among the users' remaining items, ties by the mean."""
        sizes = self.indptr.diff()[users]
        indptr = functional.pad(sizes.cumsum(0), (1, 0))
        starts = torch.repeat_interleave(self.indptr[users] - indptr[:-1], sizes)
        places = starts + torch.arange(len(starts), dtype=torch.int64, device=starts.device)
        greater, equal, greater_known, equal_known = ops.rank_counts(
            self.queries[users],
            self.items,
            items,
            indptr,
            self.known[places],
            "dot",
            candidate_ids=self._candidates(),
        )
        return 1 + (greater - greater_known) + (equal - equal_known) / 2

    def _candidates(self) -> Tensor:
        """Return all items but the padding."""
        return torch.arange(1, len(self.items), dtype=torch.int64, device=self.items.device)


class _Scoring:
    """``Trainer._full_sort_batch_eval`` that returns a product in place of scores."""

    def __init__(self, trainer: Any, own: Callable[[Any], Any]) -> None:
        self.trainer, self.own = trainer, own
        self.is_swept = True

    def __call__(self, batch: Any) -> Any:
        interaction, history, users, items = batch
        found = self._found(interaction) if self.is_swept else None
        if found is None:
            self.is_swept = False
            return self.own(batch)
        queries, table = found
        row, known = (users.new_empty(0),) * 2 if history is None else history
        pairs = (row * len(table) + known).unique().to(queries.device)  # by user
        counts = (pairs // len(table)).bincount(minlength=len(queries))
        indptr = functional.pad(counts.cumsum(0), (1, 0))
        return interaction, _Product(queries, table, indptr, pairs % len(table)), users, items

    def _found(self, interaction: Any) -> tuple[Tensor, Tensor] | None:
        """Return the vectors whose products are a model's scores; None for another model."""
        trainer, watch = self.trainer, _Watch(self.trainer.tot_item_num)
        try:
            with watch:
                scores = trainer.model.full_sort_predict(interaction.to(trainer.device))
        except RuntimeError:  # the model writes to scores, or has no such method: RecBole scores it
            scores = None
        if watch.is_result(scores):
            return watch.factors
        warnings.warn(
            f"kgfast: full_sort_predict of {type(trainer.model).__name__} returns no plain product "
            f"of users and items: RecBole scores it itself, in a matrix [users, items]",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


class _Watch(TorchFunctionMode):
    """Mode in which a product with all items is not computed: a view of one zero replaces it."""

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.num_items, self.count = num_items, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and len(args) == 2:
            queries, items = args
            if queries.ndim == items.ndim == 2 and items.shape[1] == self.num_items:
                self.factors, self.count = (queries, items.T), self.count + 1
                self.zero = queries.new_zeros(())
                return self.zero.expand(len(queries), self.num_items)
        return func(*args, **(kwargs or {}))

    def is_result(self, scores: Any) -> bool:
        """Return whether scores are the one product that was seen, unchanged."""
        if self.count != 1 or not isinstance(scores, Tensor):
            return False
        shape = len(self.factors[0]), self.num_items
        is_same = scores.untyped_storage().data_ptr() == self.zero.untyped_storage().data_ptr()
        return is_same and tuple(scores.shape) in (shape, (shape[0] * shape[1],))


class _Collecting:
    """``Collector.eval_batch_collect`` that takes a product, or scores as before."""

    def __init__(self, collector: Any, own: Callable[..., None]) -> None:
        self.collector, self.own = collector, own

    def __call__(self, scores: Any, interaction: Any, users: Tensor, items: Tensor) -> None:
        if not isinstance(scores, _Product):
            self.own(scores, interaction, users, items)
            return
        needs, facts = self.collector.register.need, self.collector.data_struct
        size, count = len(scores.items), len(scores.queries)
        positive = (users * size + items).unique().to(scores.queries.device)
        owner, item = positive // size, positive % size
        lengths = owner.bincount(minlength=count)[:, None]
        if needs("rec.items") or needs("rec.topk"):
            best = scores.topk(max(self.collector.topk))
            keys = torch.arange(count, dtype=torch.int64, device=best.device)[:, None] * size + best
            hits = torch.isin(keys, positive).int()
            if needs("rec.items"):
                facts.update_tensor("rec.items", best)
            if needs("rec.topk"):
                facts.update_tensor("rec.topk", torch.cat([hits, lengths.int()], 1))
        if needs("rec.meanrank"):
            sums = torch.zeros(count, dtype=torch.float64, device=owner.device)
            sums.index_add_(0, owner, scores.mean_ranks(owner, item).double())
            left = size - 1 - scores.indptr.diff()
            facts.update_tensor("rec.meanrank", torch.stack([sums, left, lengths[:, 0]], 1).float())
        if needs("data.label"):
            label = interaction[self.collector.config["LABEL_FIELD"]]
            facts.update_tensor("data.label", label.to(self.collector.device))
