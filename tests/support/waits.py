"""Counting how often the host waits for a GPU, and what it launches: without one, and on one."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers of a shape, on the device that stands for a GPU."""
    return torch.empty(shape, dtype=dtype, device="meta")


def ids(*shape: int) -> Tensor:
    """Return ids of a shape, on the device that stands for a GPU."""
    return meta(*shape, dtype=torch.int64)


class PretendDevice(TorchDispatchMode):
    """Within, torch's ``meta`` device stands for a GPU: its tensors have shapes but no values.

    An operation that needs values raises. ``waits`` counts copies to the host, which read ``value``
    everywhere, and those from memory that is not pinned; ``operators`` what launches a kernel.
    """

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.value = value
        self.waits: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_pin_memory":
            return args[0]
        if name in ("_to_copy", "to") and kwargs.get("device") is not None:
            is_there, to_there = args[0].is_meta, torch.device(kwargs["device"]).type == "meta"
            if is_there and not to_there:
                self.waits["device to host"] += 1
                dtype = kwargs.get("dtype") or args[0].dtype
                return torch.full(args[0].shape, self.value).to(dtype)
            if to_there and not is_there and not kwargs.get("non_blocking"):
                self.waits["host to device"] += 1
        elif name == "copy_" and args[0].is_meta != args[1].is_meta:
            assert args[2:] == (True,), "copy_ between devices waits"
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        assert not (name in _WAIT and any(leaf.is_meta for leaf in leaves)), f"{name} waits"
        if name == "clone" and args[0].is_sparse:
            return _same_parts(args[0])
        # a fused update has no kernel for tensors without values if it reads the rate from one
        result = None if name.startswith("_fused_") else func(*args, **kwargs)
        changed = args if name.startswith(_IN_PLACE_OF_LISTS) and result is None else result
        made = [leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor) and leaf.is_meta]
        if made and not (_is_view(func) or name in _NO_LAUNCH):
            self.operators[name] += 1
        return result


_WAIT = {
    *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "isin"),
}
_NO_LAUNCH = {
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach"),
    "_sparse_coo_tensor_with_dims_and_tensors",  # shares the ids and rows that it is made of
}
_IN_PLACE_OF_LISTS = ("_foreach_", "_fused_")  # operators that may return nothing


def _same_parts(sparse: Tensor) -> Tensor:
    """Return a sparse gradient of the same ids and rows, which torch would copy within a mode."""
    return torch.sparse_coo_tensor(
        sparse._indices(),
        sparse._values(),
        sparse.shape,
        dtype=sparse.dtype,
        device=sparse.device,
        check_invariants=False,
        is_coalesced=sparse.is_coalesced(),
    )


def _is_view(func: Any) -> bool:
    infos = [result.alias_info for result in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


@contextmanager
def pretended_triton() -> Iterator[Counter[str]]:
    """Within, Triton serves every call and launches nothing; give the kernels of an sm_90.

    Each launch is made while the device of its tensors is the current one.
    """
    from kgfast.kernels.triton.host import launch, status

    names: Counter[str] = Counter()
    current: list[torch.device] = []

    @contextmanager
    def serving(device: torch.device) -> Iterator[int]:
        current.append(device)
        yield 90
        current.pop()

    def note(kernel: Any, grid: Any, args: Any, **options: Any) -> None:
        tensors = (leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        assert {tensor.device for tensor in tensors} == set(current[-1:]), kernel.__name__
        names[kernel.__name__] += 1

    with (
        patch.dict("os.environ", KGFAST_BACKEND="triton"),
        patch.object(launch, "launch", note),
        patch.object(launch, "serving", serving),
        patch.object(launch, "num_multiprocessors", lambda device: 132),
        patch.object(status, "raise_if_bad", lambda rows: None),
    ):
        yield names


class RunsBodies(PretendDevice):
    """Operators run what they compute, which torch leaves out for tensors without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "kgfast":
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            from kgfast.ops.registry import OPERATORS

            return OPERATORS[func.overloadpacket.__name__].serve(*args, *(kwargs or {}).values())


class CountsStep(RunsBodies):
    """Device that counts operators of torch: ``seen``, and ``within`` operators of kgfast."""

    def __init__(self) -> None:
        super().__init__(1)
        self.seen: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self._depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, is_own = self.operators.total(), func.namespace == "kgfast"
        self._depth += is_own
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._depth -= is_own
        if not is_own and self.operators.total() > before:
            (self.within if self._depth else self.seen)[func.overloadpacket.__name__] += 1
        return result


def count_waits(call: Callable[[], object]) -> int:
    """Count how often the host waits for the real device within a call."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


class LiveMemory(PretendDevice):
    """Device like :class:`PretendDevice`; ``peak`` is the most bytes that were live at a time."""

    def __init__(self, value: int = 0) -> None:
        super().__init__(value)
        self.peak = 0
        self._live: dict[int, StorageWeakRef] = {}
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {key_of(leaf) for leaf in tree_leaves((args, kwargs)) if has_storage(leaf)}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for leaf in tree_leaves(result):
            if has_storage(leaf) and leaf.is_meta and key_of(leaf) not in given:
                storage = leaf.untyped_storage()
                self._live[key_of(leaf)] = StorageWeakRef(storage)
                self._bytes[key_of(leaf)] = storage.nbytes()
        self.peak = max(self.peak, self.live())
        return result

    def live(self) -> int:
        """Bytes that are live now."""
        self.alive()
        return sum(self._bytes.values())

    def alive(self) -> set[int]:
        """Keys of what is live now."""
        for key in [key for key, storage in self._live.items() if storage.expired()]:
            del self._live[key], self._bytes[key]
        return set(self._live)


def key_of(tensor: Tensor) -> int:
    """Return what tensors share that share memory."""
    return int(tensor.untyped_storage()._cdata)


def has_storage(leaf: object) -> bool:
    """Tell whether this is a tensor with memory of its own; a sparse one consists of such."""
    return isinstance(leaf, Tensor) and not leaf.is_sparse
