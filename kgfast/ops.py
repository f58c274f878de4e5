"""The operators: checks, dispatch by device, fake kernels.

Everything that kgfast computes goes through these. An operator checks its arguments before any
kernel runs, picks a backend by the device of its tensors (or by :func:`use_backend`), and is
registered with ``torch.library``, so that it works under ``torch.compile``.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.checks import check_finite
from kgfast.kernels.scores import Score, get_score

BACKENDS = ("reference", "cpu", "triton")
TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

_forced_backend: ContextVar[str | None] = ContextVar("kgfast_backend", default=None)
_warned: set[str] = set()


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force a backend for everything inside a ``with`` block.

    Parameters
    ----------
    name : {"reference", "cpu", "triton"}
        ``triton`` on CPU tensors needs ``TRITON_INTERPRET=1``.

    Raises
    ------
    ValueError
        If there is no such backend.

    Examples
    --------
    >>> with use_backend("reference"):
    ...     backend_for(torch.device("cpu"))
    'reference'
    """
    token = _forced_backend.set(_checked_backend(name, "use_backend"))
    try:
        yield
    finally:
        _forced_backend.reset(token)


def backend_for(device: torch.device) -> str:
    """The backend that serves tensors of ``device``.

    That of :func:`use_backend`, else of the environment variable ``KGFAST_BACKEND``, else ``cpu``
    for CPU tensors and ``triton`` for CUDA and ROCm ones; ``reference`` where that one is not
    installed, with one warning.

    Raises
    ------
    ValueError
        If the forced backend does not exist, or cannot serve this device.
    """
    forced = _forced_backend.get()
    if forced is None and "KGFAST_BACKEND" in os.environ:
        forced = _checked_backend(os.environ["KGFAST_BACKEND"], "KGFAST_BACKEND")
    if forced is not None:
        _check_forced(forced, device)
        return forced
    if device.type == "cpu":
        return _or_reference("cpu", "the C++ extension is not built (is there a compiler?)")
    if device.type == "cuda":
        return _or_reference("triton", "Triton is not installed")
    _warn_once(f"kgfast has no kernels for {device.type} tensors; using the slow reference backend")
    return "reference"


def _checked_backend(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}; got {name!r}")
    return name


def _check_forced(name: str, device: torch.device) -> None:
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' cannot serve tensors on {device}")
    if name != "reference" and not _is_available(name):
        raise ValueError(f"backend {name!r} is not installed")
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    if name == "triton" and device.type == "cpu" and not interpreting:
        raise ValueError("backend 'triton' serves CPU tensors only with TRITON_INTERPRET=1")


def _is_available(name: str) -> bool:
    return bool(import_module(f"kgfast.kernels.{name}").is_available())


def _or_reference(name: str, reason: str) -> str:
    if _is_available(name):
        return name
    _warn_once(f"kgfast: {reason}; using the slow reference backend")
    return "reference"


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _kernel(consumer: str, name: str, device: torch.device) -> Callable[..., Any]:
    """The function ``name`` of a consumer's file in the backend that serves ``device``."""
    module = import_module(f"kgfast.kernels.{backend_for(device)}.{consumer}")
    return getattr(module, name)  # type: ignore[no-any-return]


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count, per query, the candidates that score above its target and those that equal it.

    The counts are exact: pairs are compared by their canonical float64 scores
    (:mod:`kgfast.kernels.scores`), so every backend returns the same integers. Filtered counts are
    ``greater - greater_excluded`` and ``equal - equal_excluded``.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32 or float64.
    candidates : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    targets : Tensor
        ``[B]`` int64 in ``0 .. N-1``: the true entity of each query. It never counts itself.
    exclude_indptr, exclude_indices : Tensor
        ``[B + 1]`` and ``[nnz]`` int64, CSR: ids known to be true per query, in any order;
        duplicates count once, and the target is ignored.
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate`` or ``rotate_interleaved``.
    bias : Tensor, optional
        ``[N]`` or ``[1]`` floating point, added to scores last.
    factor : Tensor, optional
        Reserved for scores that take a per-candidate factor; none of the present ones does.
    dims : sequence of int, optional
        Crop widths in features. Results get a leading axis ``[len(dims)]``.
    candidate_ids : Tensor, optional
        ``[M]`` int64, unique: only these rows are candidates. Targets and excluded ids stay ids
        of the full table; a target outside the subset is ranked against it.
    nan_worst : bool
        Accept NaN and infinities: a target whose score is NaN ranks below every other candidate,
        a candidate whose score is NaN below every target.

    Returns
    -------
    greater, equal, greater_excluded, equal_excluded : Tensor
        int64 ``[B]``, or ``[len(dims), B]``.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device, id or number that does not fit; the message names the argument,
        the first offending row and the allowed range. Nothing is computed.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    >>> none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    >>> greater, equal, *_ = rank_counts(
    ...     torch.tensor([[2.0]]), table, torch.tensor([2]), *none, "l1")
    >>> greater.item(), equal.item()
    (0, 1)
    """
    _check_operands(queries, candidates, score, bias, factor, dims)
    _check_index("targets", targets, (len(queries),), candidates)
    _check_index("exclude_indptr", exclude_indptr, (len(queries) + 1,), candidates)
    _check_index("exclude_indices", exclude_indices, (None,), candidates)
    if candidate_ids is not None:
        _check_index("candidate_ids", candidate_ids, (None,), candidates)
    result: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.kgfast.rank_counts(
        queries.detach(),
        candidates.detach(),
        targets,
        exclude_indptr,
        exclude_indices,
        score,
        None if bias is None else bias.detach(),
        None,
        None if dims is None else list(dims),
        candidate_ids,
        nan_worst,
    )
    return result


@torch.library.custom_op("kgfast::rank_counts", mutates_args=())
def _rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    candidate_ids: Tensor | None,
    nan_worst: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_ids("targets", targets, len(candidates))
    _check_ids("exclude_indices", exclude_indices, len(candidates))
    _check_indptr(exclude_indptr, len(exclude_indices))
    if candidate_ids is not None:
        _check_ids("candidate_ids", candidate_ids, len(candidates))
        _check_unique("candidate_ids", candidate_ids)
    if bias is not None and not nan_worst:
        _check_finite_bias(bias)
    counts: tuple[Tensor, Tensor, Tensor, Tensor] = _kernel(
        "rank", "rank_counts", candidates.device
    )(
        queries,
        candidates,
        targets,
        exclude_indptr,
        exclude_indices,
        score,
        bias=bias,
        factor=factor,
        dims=dims,
        candidate_ids=candidate_ids,
        nan_worst=nan_worst,
    )
    return counts


@_rank_counts.register_fake
def _(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    candidate_ids: Tensor | None,
    nan_worst: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = targets.shape if dims is None else (len(dims), *targets.shape)
    greater, equal, greater_excluded, equal_excluded = (targets.new_empty(shape) for _ in range(4))
    return greater, equal, greater_excluded, equal_excluded


def _check_operands(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
) -> Score:
    """Names, shapes, dtypes and devices of what every operator takes."""
    facts = get_score(score)
    for name, rows, dtypes in (
        ("queries", queries, (torch.float32, torch.float64)),
        ("candidates", candidates, TABLE_DTYPES),
    ):
        if not isinstance(rows, Tensor):
            raise TypeError(f"{name} must be a tensor; got {type(rows).__name__}")
        if rows.ndim != 2:
            raise ValueError(f"{name} must have two axes; got shape {list(rows.shape)}")
        if rows.dtype not in dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{name} must be {names}; got {rows.dtype}")
    width = candidates.shape[1]
    if width < facts.planes or width % facts.planes:
        raise ValueError(f"candidates: {score} needs rows of pairs re, im; got {width} columns")
    if queries.shape[1] != width:
        raise ValueError(
            f"queries must have {width} columns, as candidates do; got {queries.shape[1]}"
        )
    _check_device("queries", queries, candidates)
    if factor is not None:
        raise ValueError(f"factor: score {score} takes none")
    if bias is not None:
        _check_bias(bias, candidates)
    if dims is not None:
        _check_dims(dims, facts.num_features(width))
    return facts


def _check_device(name: str, tensor: Tensor, candidates: Tensor) -> None:
    if tensor.device != candidates.device:
        raise ValueError(
            f"{name} must be on {candidates.device}, as candidates are; got {tensor.device}"
        )


def _check_bias(bias: Tensor, candidates: Tensor) -> None:
    if not isinstance(bias, Tensor) or bias.dtype not in TABLE_DTYPES:
        raise TypeError("bias must be a floating-point tensor")
    if bias.shape not in ((len(candidates),), (1,)):
        raise ValueError(f"bias must have shape [{len(candidates)}] or [1]; got {list(bias.shape)}")
    _check_device("bias", bias, candidates)


def _check_dims(dims: Sequence[int], num_features: int) -> None:
    if len(dims) == 0:
        raise ValueError("dims must name at least one crop width")
    for position, dim in enumerate(dims):
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dims[{position}] must be an int; got {dim!r}")
        if not 1 <= dim <= num_features:
            raise ValueError(f"dims[{position}] must be in 1 .. {num_features}; got {dim}")


def _check_index(name: str, index: Tensor, shape: tuple[int | None], candidates: Tensor) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(index).__name__}")
    if index.dtype != torch.int64:
        raise TypeError(f"{name} must be int64; got {index.dtype}")
    if index.ndim != 1 or (shape[0] is not None and index.shape[0] != shape[0]):
        wanted = "one axis" if shape[0] is None else f"shape [{shape[0]}]"
        raise ValueError(f"{name} must have {wanted}; got shape {list(index.shape)}")
    _check_device(name, index, candidates)


def _check_ids(name: str, ids: Tensor, count: int) -> None:
    if not len(ids):
        return
    low, high = torch.aminmax(ids)
    if int(low) < 0 or int(high) >= count:
        row = int(((ids < 0) | (ids >= count)).nonzero()[0])
        allowed = f"0 .. {count - 1}" if count else "empty: there are no candidates"
        raise ValueError(f"{name}[{row}] must be in {allowed}; got {int(ids[row])}")


def _check_indptr(indptr: Tensor, nnz: int) -> None:
    if not (int(indptr[0]) == 0 and int(indptr[-1]) == nnz and bool((indptr.diff() >= 0).all())):
        raise ValueError(
            f"exclude_indptr must rise from 0 to len(exclude_indices) = {nnz}; "
            f"got {int(indptr[0])} .. {int(indptr[-1])}"
        )


def _check_unique(name: str, ids: Tensor) -> None:
    ordered = ids.sort().values
    repeated = (ordered[1:] == ordered[:-1]).nonzero()
    if len(repeated):
        value = int(ordered[int(repeated[0])])
        row = int((ids == value).nonzero()[1])
        raise ValueError(f"{name}[{row}] must not repeat an earlier id; got {value} again")


def _check_finite_bias(bias: Tensor) -> None:
    check_finite("bias", bias)
