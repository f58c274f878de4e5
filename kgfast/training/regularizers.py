"""What a config penalises: rows of a step, by the formulas of :mod:`kgfast.losses.regularizers`."""

from dataclasses import replace

import torch
from torch import Tensor

from kgfast.losses.regularizers import Uses, dura_of, l2_of, n3_of
from kgfast.models.base import Model
from kgfast.training.config.sections import RegularizerConfig
from kgfast.training.negatives import Batch


class Regularizer:
    """The penalty of a batch: ``weight`` times the mean over its queries.

    Parameters
    ----------
    config : RegularizerConfig

    Examples
    --------
    >>> from kgfast import DistMult
    >>> ones = torch.tensor([0])
    >>> model = DistMult(torch.ones(1, 2), torch.tensor([[1.0, -2.0]]))
    >>> batch = Batch(0, "tail", ones, ones, None, None)
    >>> Regularizer(RegularizerConfig(name="l2", weight=0.1))(model, batch, model.entity, None)
    tensor(0.7000)
    """

    def __init__(self, config: RegularizerConfig) -> None:
        self._config = config

    def __call__(
        self,
        model: Model,
        batch: Batch,
        anchors: Tensor,
        targets: Tensor | None,
    ) -> Tensor:
        """The penalty, a scalar.

        Parameters
        ----------
        model : Model
        batch : Batch
        anchors, targets : Tensor
            ``[B, G]``, the rows of entities of the B queries; no targets where a query has many.
        """
        name = self._config.name
        uses = Uses.of(model, batch.side, anchors, batch.relations, targets)
        if not self._config.weighted:
            uses = replace(uses, shares=_shares(model, batch))
        if name == "dura":
            penalties = dura_of(uses, self._config.product_weight)
        else:
            penalties = n3_of(uses) if name == "n3" else l2_of(uses)
        return self._config.weight * penalties.mean()


def _shares(model: Model, batch: Batch) -> list[Tensor]:
    """What each anchor, relation and target of a batch counts for, where ids count once in it."""
    entities = [batch.anchors] if batch.targets is None else [batch.anchors, batch.targets]
    of_anchors, *of_targets = _once(entities)
    relations = model.relation_ids(batch.relations, batch.side)
    return [of_anchors, *_once([relations]), *of_targets]


def _once(ids: list[Tensor]) -> list[Tensor]:
    """For each of the ids ``[B]``, one over how often it stands in all of them."""
    _, places, counts = torch.cat(ids).unique(return_inverse=True, return_counts=True)
    shares = counts.float().reciprocal().index_select(0, places)
    return list(shares.split([len(it) for it in ids]))
