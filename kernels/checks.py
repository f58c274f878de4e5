"""The checks of values that every backend makes, and the words of their errors.

Shapes, dtypes and ids are checked by ``kgfast.ops`` before a backend is called; whether the
numbers that take part are finite is seen only where they are read.
"""

import torch


def nonfinite_error(name: str, row: int) -> ValueError:
    """The error for a NaN or an infinity in row ``row`` of argument ``name``."""
    return ValueError(
        f"{name}: row {row} holds a NaN or an infinity; every number that takes part must be "
        f'finite (pass nan="worst" to rank such scores last instead)'
    )


def check_finite(name: str, values: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Raise for the first row of ``values`` ``[R, *]`` that is not finite.

    ``rows`` names the rows where they are a selection of the argument's.
    """
    finite = values.isfinite()
    finite = finite.flatten(1).all(1) if values.ndim > 1 else finite
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise nonfinite_error(name, first if rows is None else int(rows[first]))
