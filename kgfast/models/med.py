"""MED (Zhu et al. 2025, ACL long.579): sub-models of several widths that share one table."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from kgfast.models.base import (
    Candidates,
    Model,
    Side,
    candidates_of,
    check_dim,
    check_option,
    queries_of,
)
from kgfast.models.conve import ConvE
from kgfast.models.cp import CP
from kgfast.models.rescal import RESCAL
from kgfast.models.wrapper import Wrapper, unwrapped

Crop = Literal["prefix", "split"]
LossWeight = Literal["exp", "sigmoid"]
_SCALES = ("w1", "w2", "w3")


class MED(Wrapper):
    """Croppable embeddings: sub-model ``i`` is the model's first ``dims[i]`` features.

    Ranks of every sub-model come from one call, ``rank(med, triples, dims=med.dims)``.

    Parameters
    ----------
    model : Model
        RotatE, TransE, DistMult or ComplEx, or RSCF around one of the first two.
    dims : sequence of int
        Widths of the sub-models, increasing; the last is the width of the model.
    submodels_per_step : int, optional
        Number of consecutive sub-models that a step trains; all by default.
    crop : {"prefix", "split"}
        The first ``d`` dimensions of a complex row ``re | im``. ``prefix``: ``re[:d]`` and
        ``im[:d]``. ``split``: the first ``2 d`` columns, cut into halves, for checkpoints that were
        trained so. Each sub-model then needs a separate sweep.
    loss_weight : {"exp", "sigmoid"}
        ``exp(w3 d_i / d_n)`` (the paper) or ``sigmoid(w3 (d_i / d_n - 1/2))``.
    scales : sequence of float
        Initial ``w1``, ``w2`` and ``w3``, which spread the weights of positives, of negatives and
        of sub-models. At 0 all weights are equal.
    learnable : bool
        Train ``w1``, ``w2`` and ``w3``.

    Examples
    --------
    >>> from kgfast import RotatE, rank
    >>> med = MED(RotatE.init(20, 2, dim=8, seed=0), dims=[2, 4, 8])
    >>> ranks = rank(med, [(0, 1, 2)], dims=med.dims)
    >>> list(ranks), ranks[2].optimistic.shape
    ([2, 4, 8], torch.Size([1, 2]))
    """

    has_large_operators = True
    dims: list[int]
    w1: nn.Parameter
    w2: nn.Parameter
    w3: nn.Parameter

    def __init__(
        self,
        model: Model,
        dims: Sequence[int],
        submodels_per_step: int | None = None,
        crop: Crop = "prefix",
        loss_weight: LossWeight = "exp",
        *,
        scales: Sequence[float] = (1.0, 1.0, 1.0),
        learnable: bool = True,
    ) -> None:
        super().__init__(model)
        if any(isinstance(layer, MED) for layer in model.modules()):
            raise ValueError("model is croppable already: put MED around the inner model")
        inner = unwrapped(model)
        if isinstance(inner, ConvE | RESCAL) or (crop == "split" and isinstance(inner, CP)):
            raise ValueError(f"dims: {type(inner).__name__} cannot be cropped ({crop})")
        check_option("crop", crop, ("prefix", "split"))
        check_option("loss_weight", loss_weight, ("exp", "sigmoid"))
        self.crop: Crop = crop
        self.nested = self.nested and crop == "prefix"
        self.dims = self._checked_dims(dims)
        count = len(self.dims) if submodels_per_step is None else submodels_per_step
        if not 1 <= count <= len(self.dims):
            raise ValueError(
                f"submodels_per_step must be in 1 .. {len(self.dims)}, the number of dims; "
                f"got {count}"
            )
        self.submodels_per_step = count
        self.loss_weight: LossWeight = loss_weight
        if (
            not isinstance(scales, Sequence)
            or len(scales) != len(_SCALES)
            or not all(map(math.isfinite, scales))
        ):
            raise ValueError(f"scales must be three finite numbers, of w1, w2, w3; got {scales!r}")
        for name, scale in zip(_SCALES, scales, strict=True):
            start = torch.tensor(float(scale), dtype=self._dtype, device=model.entity.device)
            setattr(self, name, nn.Parameter(start, requires_grad=learnable))

    def _checked_dims(self, dims: Sequence[int]) -> list[int]:
        if not isinstance(dims, Sequence) or not dims:
            raise TypeError(f"dims must be a sequence of ints, the widths; got {dims!r}")
        widths = [check_dim(width, self.dim) for width in dims]
        if self.crop == "prefix":
            self.model.crop_width(widths[0])  # raises for models without crops
        check_increasing(widths)
        if widths[-1] != self.dim:
            raise ValueError(
                f"the last of dims must be the model's dim, {self.dim}: no step would train the "
                f"other features; got {widths}"
            )
        return widths

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Return :meth:`Model.queries`; a ``split`` crop has rows of the crop's width."""
        if dims is not None and self.crop == "split":
            return self.model.first_columns(dims).queries(anchors, relations, side)
        return self.model.queries(anchors, relations, side, dims)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return :meth:`Model.candidates`; a ``split`` crop is the first columns of the table."""
        if dims is not None and self.crop == "split":
            return self.model.first_columns(dims).candidates(side)
        return self.model.candidates(side, dims)

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return the candidates of several crops at once, for a step of training."""
        if self.crop == "split":
            return [self.candidates(side, dim) for dim in dims]
        return candidates_of(self.model, side, dims)

    def queries_of(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
    ) -> list[Tensor]:
        """Return the queries of several crops at once, for a step of training."""
        if self.crop == "split":
            return [self.queries(anchors, relations, side, dim) for dim in dims]
        return queries_of(self.model, anchors, relations, side, dims)

    def crop_width(self, dim: int) -> int | None:
        """Return :meth:`Model.crop_width`; None for ``split``, which cuts operands."""
        return None if self.crop == "split" else self.model.crop_width(dim)

    def draw(self, number: int) -> list[int]:
        """Draw the consecutive sub-models of a step.

        Parameters
        ----------
        number : int
            A random number, such as a seeded hash of the step: equal numbers draw equal sub-models.
        """
        first = number % (len(self.dims) - self.submodels_per_step + 1)
        return self.dims[first : first + self.submodels_per_step]

    def logged_values(self) -> dict[str, float]:
        return {name: float(getattr(self, name).detach()) for name in _SCALES}


def check_increasing(dims: Sequence[int]) -> None:
    """Check that widths of sub-models increase."""
    if list(dims) != sorted(set(dims)):
        raise ValueError(f"dims must increase; got {list(dims)}")
