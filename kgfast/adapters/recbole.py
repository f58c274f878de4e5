"""RecBole's full-sort evaluation (Zhao et al. 2021; recbole 1.2), without a matrix of scores.

kgfast.adapters.recbole.attach(trainer)

The trainer then evaluates by streamed scores, also in ``fit``. RecBole itself is not imported.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kgfast.eval import topk_rows
from kgfast.text import shown

__all__ = ["attach"]

_PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)


def attach(trainer: Any) -> Any:
    """Let a trainer of RecBole evaluate by streamed scores; return the trainer.

    Most models have a ``full_sort_predict`` that returns a product ``[users, D] @ [D, items]``;
    these are swept. RecBole scores other models itself, in a matrix, with one warning. Items in the
    history of a user, and RecBole's padding, item 0, are no candidates. Scores are canonical
    (docs/explanation/exactness.md), and the lowest id comes first among equals. A TypeError names
    another object, and a ValueError a metric that needs all scores.
    """
    collector = getattr(trainer, "eval_collector", None)
    if collector is None or not hasattr(trainer, "_full_sort_batch_eval"):
        raise TypeError(f"trainer must be a recbole.trainer.Trainer; got {shown(trainer)}")
    if any(collector.register.need(name) for name in ("rec.score", "rec.meanrank")):
        raise ValueError(
            "trainer: a metric of its config needs all scores (GAUC, AUC), which kgfast never "
            "stores; metrics of the best items do not"
        )
    own_scores, own_collect = trainer._full_sort_batch_eval, collector.eval_batch_collect
    is_swept = True

    def scores_of(batch: Any) -> Any:
        nonlocal is_swept
        interaction, history, users, items = batch
        factors = _factors(trainer, interaction) if is_swept else None
        if factors is None:
            is_swept = False
            return own_scores(batch)
        return interaction, _Product.of(*factors, history), users, items

    def collect(scores: Any, interaction: Any, users: Tensor, items: Tensor) -> None:
        if not isinstance(scores, _Product):
            own_collect(scores, interaction, users, items)
            return
        positive = (users * len(scores.items) + items).unique().to(scores.queries.device)
        _collect(collector, scores, positive)
        if collector.register.need("data.label"):
            label = interaction[collector.config["LABEL_FIELD"]]
            collector.data_struct.update_tensor("data.label", label.to(collector.device))

    trainer._full_sort_batch_eval, collector.eval_batch_collect = scores_of, collect
    return trainer


class _Product(NamedTuple):
    """Scores of a batch that are not computed: vectors of users and items, and masked items."""

    queries: Tensor  # [B, D]
    items: Tensor  # [N, D]
    exclude: tuple[Tensor, Tensor]  # CSR, the items that each user knows

    @classmethod
    def of(cls, queries: Tensor, items: Tensor, history: Any) -> "_Product":
        """Return the product for users with a history: pairs of a row and an item, or None."""
        rows, known = (queries.new_empty(0).long(),) * 2 if history is None else history
        order, counts = rows.argsort(stable=True), rows.bincount(minlength=len(queries))
        return cls(queries, items, (functional.pad(counts.cumsum(0), (1, 0)), known[order]))

    def best(self, k: int) -> Tensor:
        """Return the ids ``[B, k]`` of the best items but the padding; 0 if there are fewer."""
        ids = range(1, len(self.items))
        options: dict[str, Any] = {"exclude": self.exclude, "candidate_ids": ids, "pad": True}
        return topk_rows(self.queries, self.items, k, **options)[1].clamp(min=0)


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
        if self.count != 1 or not isinstance(scores, Tensor):
            return False
        shape = len(self.factors[0]), self.num_items
        is_same = scores.untyped_storage().data_ptr() == self.zero.untyped_storage().data_ptr()
        return is_same and tuple(scores.shape) in (shape, (shape[0] * shape[1],))


def _factors(trainer: Any, interaction: Any) -> tuple[Tensor, Tensor] | None:
    """Return the vectors whose products are a model's scores; None for another model."""
    watch = _Watch(trainer.tot_item_num)
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


def _collect(collector: Any, scores: _Product, positive: Tensor) -> None:
    """Give RecBole's collector what its metrics need; ``positive`` are keys of (user, item)."""
    needs, facts = collector.register.need, collector.data_struct
    size, count = len(scores.items), len(scores.queries)
    lengths = (positive // size).bincount(minlength=count)[:, None]
    best = scores.best(max(collector.topk))
    if needs("rec.items"):
        facts.update_tensor("rec.items", best)
    if needs("rec.topk"):
        keys = torch.arange(count, dtype=torch.int64, device=best.device)[:, None] * size + best
        hits = torch.isin(keys, positive).int()
        facts.update_tensor("rec.topk", torch.cat([hits, lengths.int()], 1))
