"""Ranks of a split of a dataset, as a config asks for them."""

from collections.abc import Sequence

from kgfast.datasets import Dataset
from kgfast.eval.index import Index
from kgfast.eval.ranking import rank
from kgfast.eval.ranks import Ranks
from kgfast.models import MED, Model
from kgfast.models.base import SIDES, Side
from kgfast.training.config import Config
from kgfast.training.run_graph import SPLITS


def ranks_of(
    model: Model,
    dataset: Dataset,
    split: str,
    config: Config,
    sides: Sequence[Side] = SIDES,
    index: Index | None = None,
    most: int | None = None,
) -> Ranks | dict[int, Ranks]:
    """The ranks of :meth:`Trainer.evaluate`, of any model and dataset that fit each other.

    An index of a model that has trained on is packed again. ``most`` ranks so many triples alone.
    """
    check_split(split)
    if index is not None and not index.is_current:
        index.refresh()
    return rank(
        model,
        getattr(dataset, split)[:most],
        known=dataset.known(),
        sides=sides,
        batch_size=config.data.test_bs,
        dims=model.dims if isinstance(model, MED) else None,
        index=index,
    )


def check_split(split: str) -> None:
    """That there is such a split."""
    if split not in SPLITS:
        raise ValueError(f"split must be train, valid or test; got {split!r}")
