"""Relation prediction: the auxiliary task of RSCF (Kim et al. 2025)."""

import torch
from torch import Tensor
from torch.nn import functional

from kgfast.losses.formulas import Reduction, check_reduction
from kgfast.ops.checks import check_tensor


def relation_prediction(
    logits: Tensor, relations: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Cross entropy of relations given head and tail: ``-log softmax(logits)_r``.

    The logits are the caller's: the form of the published term could not be read, so none is built
    in (docs/med_rscf.md).

    Parameters
    ----------
    logits : Tensor
        ``[B, R]`` floating point.
    relations : Tensor
        int64 ``[B]`` in ``0 .. R-1``.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For shapes, dtypes or ids that do not fit; the message names the first offending row.

    Examples
    --------
    >>> relation_prediction(torch.zeros(2, 4), torch.tensor([3, 0]))
    tensor(1.3863)
    """
    check_reduction(reduction)
    check_tensor("logits", logits)
    check_tensor("relations", relations)
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating point [B, R]; got {list(logits.shape)}")
    if relations.dtype != torch.int64:
        raise TypeError(f"relations must be int64; got {relations.dtype}")
    if relations.shape != logits.shape[:1]:
        raise ValueError(f"relations must have shape [{len(logits)}]; got {list(relations.shape)}")
    outside = ((relations < 0) | (relations >= logits.shape[1])).nonzero()
    if len(outside):
        row = int(outside[0])
        raise ValueError(
            f"relations[{row}] must be in 0 .. {logits.shape[1] - 1}; got {int(relations[row])}"
        )
    return functional.cross_entropy(logits, relations, reduction=reduction)
