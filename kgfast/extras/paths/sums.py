"""Sums of a function over the paths that end in each node, chunk by chunk, forward and backward.

The forward adds up the messages of a chunk and drops them; the backward makes the messages again.
The gradient of a message is the gradient of the receiving node, so chunks do not depend on each
other.

Cost model: the message runs twice on every path and its backward once. Memory: one chunk's
activations, the gradients of the tensors that the message depends on, and O(order E) numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from kgfast.extras.paths.enumeration import CHUNK, Paths
from kgfast.ops import check_int
from kgfast.text import shown

Message = Callable[..., Tensor]
_HALF = (torch.float16, torch.bfloat16)


def path_sum(
    message: Message,
    edge_index: Tensor,
    num_nodes: int,
    *,
    inputs: Sequence[Tensor] = (),
    order: int = 3,
    to: Literal["last", "first"] = "last",
    chunk: int | None = None,
    backtracking: bool = False,
) -> Tensor:
    """Sum ``message`` over the paths that end in each node.

    Gradients of inputs and parameters are exact, in the memory of one chunk. The backward makes
    each chunk again, with equal random numbers (dropout) and equal autocast. Equal calls give equal
    bits if the message's own operations do: index with :func:`torch.nn.functional.embedding`, since
    several threads add up the gradient of ``rows[ids]`` in the order of arrival.

    Parameters
    ----------
    message : callable
        Takes paths, int64 ``[P, order + 1]``, first node first, and the inputs; returns floats
        ``[P, H]``. A row of the result must depend on that path alone, not on the chunk. The
        function may close over parameters and constants.
    edge_index : Tensor, int64 or int32 [2, E]
        Edges, as in :class:`Paths`.
    num_nodes : int
        Rows of the result.
    inputs : sequence of Tensor
        Tensors that the message takes after the paths, in this order: results of other operations,
        such as node states of the layer before.
    order : int
        Edges of a path.
    to : "last" or "first"
        The node of a path to which its message goes.
    chunk : int, optional
        Paths at once, 2,048 by default. The result depends on the chunk as a sum depends on order.
    backtracking : bool
        Allow i -> j -> i as (part of) a path.

    Returns
    -------
    Tensor [num_nodes, H]
        In the message's dtype; zeros for nodes in which no path ends. In a graph without paths the
        message gets ``[0, order + 1]`` paths, and returns ``[0, H]``.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit, an edge leads to a missing node, or the message returns
        another shape; if the message closes over a result of another operation that has a gradient.
    RuntimeError
        In the backward, if a tensor that the message depends on was changed in place since, or with
        ``create_graph=True``; for forward mode and transforms of ``torch.func``.

    Examples
    --------
    >>> states = torch.tensor([[1.0], [10.0], [100.0]], requires_grad=True)
    >>> line = torch.tensor([[0, 1], [1, 2]])
    >>> total = path_sum(lambda path: states[path].sum(1), line, 3, order=2)
    >>> total.flatten().tolist()
    [0.0, 0.0, 111.0]
    >>> total.sum().backward()
    >>> states.grad.flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    if to not in ("last", "first"):
        raise ValueError(f'to must be "last" or "first"; got {shown(to)}')
    size = CHUNK if chunk is None else chunk
    check_int("chunk", size, 1)
    _check_inputs(inputs)
    paths = Paths(edge_index, num_nodes, order=order, backtracking=backtracking, by=to)
    job = _Job(message, paths, size, _Surroundings(edge_index.device))
    # Inference mode records nothing, whatever the grad mode says.
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return job.forward(inputs, None)
    parameters: dict[int, Tensor] = {}
    total = job.forward([_leaf_of(tensor) for tensor in inputs], parameters)
    arguments = job, [total], len(inputs), *inputs, *parameters.values()
    result: Tensor = _Recomputed.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, Tensor) or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise TypeError(f"inputs must be a sequence of tensors; got {shown(inputs)}")


class _Surroundings:
    """The random state and autocast settings that a message runs under."""

    def __init__(self, device: torch.device) -> None:
        self._of_cpu = torch.get_rng_state()
        self._of_devices = get_device_states(torch.empty(0, dtype=torch.float32, device=device))
        self._device_type = device.type
        self._casts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in {"cpu", device.type}
            if torch.amp.is_autocast_available(kind)
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        devices, states = self._of_devices
        kind = self._device_type if devices else "cuda"
        with torch.random.fork_rng(devices, device_type=kind), self.same_casts():
            torch.set_rng_state(self._of_cpu)
            set_device_states(devices, states, device_type=kind)
            yield

    @contextmanager
    def same_casts(self) -> Iterator[None]:
        """Apply the captured autocast; no chunk reuses the casts of another."""
        with ExitStack() as stack:
            for kind, dtype, enabled in self._casts:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            yield


@dataclass(frozen=True)
class _Job:
    """Sum in progress: the message, and the paths to sum over."""

    message: Message
    paths: Paths
    size: int
    surroundings: _Surroundings

    def forward(self, inputs: Sequence[Tensor], parameters: dict[int, Tensor] | None) -> Tensor:
        """Sum without a graph; note the parameters that the sums depend on."""
        total, kind, since = None, None, 0 if parameters is None else _now()
        for start, stop in self._ranges():
            value = self._value(self.paths[start:stop], inputs)
            if parameters is not None:
                for leaf in _leaves_of(value, since):
                    if all(leaf is not tensor for tensor in inputs):
                        parameters[id(leaf)] = leaf
            if total is None:
                shape, kind = (self.paths.num_nodes, value.shape[1]), value.dtype
                total = torch.zeros(shape, dtype=_sum_dtype(kind), device=value.device)
            elif (value.shape[1], value.dtype) != (total.shape[1], kind):
                raise ValueError(
                    f"message returned {kind} of width {total.shape[1]} for the first paths and "
                    f"{value.dtype} of width {value.shape[1]} for those from {start} on"
                )
            self._add(total, value.detach(), start, stop)
            del value
        assert total is not None
        assert kind is not None
        return total.to(kind)

    def gradients(
        self, grad: Tensor, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the gradients of inputs and parameters."""
        leaves = [_leaf_of(tensor) for tensor in inputs]
        wanted = [*(leaf for leaf in leaves if leaf.requires_grad), *parameters]
        sums = [
            torch.zeros(leaf.shape, dtype=_sum_dtype(leaf.dtype), device=leaf.device)
            for leaf in wanted
        ]
        column = 0 if self.paths.by == "first" else -1
        with torch.enable_grad(), self.surroundings.again(), _without_hooks(parameters):
            for start, stop in self._ranges():
                path = self.paths[start:stop]
                value = self._value(path, leaves)
                if not value.requires_grad:
                    continue
                of_path = grad.index_select(0, path[:, column])
                parts = torch.autograd.grad(value, wanted, of_path, allow_unused=True)
                for total, gradient in zip(sums, parts, strict=True):
                    if gradient is not None:
                        total += gradient
                del value, parts
        return [total.to(leaf.dtype) for total, leaf in zip(sums, wanted, strict=True)]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield chunks; a graph without paths has one empty chunk, which tells the width."""
        count = len(self.paths)
        for start in range(0, max(1, count), self.size):
            yield start, min(start + self.size, count)

    def _value(self, path: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        with self.surroundings.same_casts():
            value = self.message(path, *inputs)
        if not isinstance(value, Tensor):
            raise TypeError(f"message must return a tensor; got {type(value).__name__}")
        if value.ndim != 2 or len(value) != len(path):
            raise ValueError(
                f"message must return [P, H], [{len(path)}, H] for these paths; got "
                f"{list(value.shape)}"
            )
        if not value.is_floating_point():
            raise TypeError(f"message must return floats; got {value.dtype}")
        return value

    def _add(self, total: Tensor, value: Tensor, start: int, stop: int) -> None:
        """Add the messages of a chunk to the nodes; a node's paths are neighbours."""
        if start == stop:
            return
        first, offsets = self.paths.segments(start, stop)
        sums = torch.segment_reduce(
            value.to(total.dtype), "sum", offsets=offsets.to(value.device), initial=0.0
        )
        total[first : first + len(sums)] += sums


def _leaf_of(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _now() -> int:
    """Return autograd's sequence number: nothing recorded so far has a larger one."""
    clock = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
    with torch.enable_grad():
        node = (clock + 1).grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _leaves_of(value: Tensor, since: int) -> Iterator[Tensor]:
    """Yield the leaves of the graph of a value, of nodes that were recorded since."""
    if value.requires_grad and value.grad_fn is None:
        yield value
    ahead, seen = [value.grad_fn], set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        elif node._sequence_nr() <= since:
            raise ValueError(
                f"message closes over a tensor that {node.name()} made: name it in inputs, and "
                "take it after the paths: path_sum(lambda path, states: ..., inputs=[states])"
            )
        else:
            ahead += [ancestor for ancestor, _ in node.next_functions]


@contextmanager
def _without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Disable tensor hooks, which later see the whole gradient, not the gradient of a chunk."""
    hooks = [tensor._backward_hooks for tensor in tensors if tensor._backward_hooks]
    kept = [dict(of_tensor) for of_tensor in hooks]
    for of_tensor in hooks:
        of_tensor.clear()
    try:
        yield
    finally:
        for of_tensor, before in zip(hooks, kept, strict=True):
            of_tensor.update(before)


def _sum_dtype(kind: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float32 for half precision."""
    return torch.float32 if kind in _HALF else kind


class _Recomputed(torch.autograd.Function):
    """Sums as an autograd function of inputs and parameters."""

    @staticmethod
    def forward(
        ctx: Any, job: _Job, total: list[Tensor], num_inputs: int, *tensors: Tensor
    ) -> Tensor:
        """Return the sums. They come in a list, which autograd does not track."""
        ctx.job, ctx.num_inputs = job, num_inputs
        ctx.save_for_backward(*tensors)
        return total.pop()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "path_sum has no second derivative: create_graph must be False"
            )
        needed = ctx.needs_input_grad[3:]
        tensors = [  # raises if one was changed
            tensor if need else tensor.detach()
            for tensor, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        inputs, parameters = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
        needs = needed[ctx.num_inputs :]  # of the forward: one may be frozen since, an error
        wanted = [tensor for tensor, need in zip(parameters, needs, strict=True) if need]
        gradients = iter(ctx.job.gradients(grad, inputs, wanted))
        return None, None, None, *(next(gradients) if need else None for need in needed)
