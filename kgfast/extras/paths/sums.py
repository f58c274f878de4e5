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
from torch.autograd import forward_ad

from kgfast.extras.paths.closures import GraphCut, Sources, now
from kgfast.extras.paths.enumeration import CHUNK, Paths, check_count
from kgfast.text import shown

Message = Callable[[Tensor], Tensor]
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

    Gradients of all tensors behind the message are exact, in the memory of one chunk. The backward
    makes each chunk again, with equal random numbers (dropout) and equal autocast. Equal calls give
    equal bits if the message's own operations do; index with :func:`take` for that.

    Parameters
    ----------
    message : callable
        Takes paths, int64 ``[P, order + 1]``, first node first; returns floats ``[P, H]``. A row of
        the result must depend on that path alone, not on the chunk. The function may close over
        anything.
    edge_index : Tensor, int64 or int32 [2, E]
        Edges, as in :class:`Paths`.
    num_nodes : int
        Rows of the result.
    inputs : sequence of Tensor
        Tensors that the message closes over. These may be left out: parameters and results of other
        operations are found when the message runs.
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
        another shape.
    NotImplementedError
        Within forward-mode differentiation; in the backward, with ``create_graph=True``.
    RuntimeError
        In the backward, if a tensor that the message depends on was changed in place since.

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
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "kgfast.extras.paths.path_sum has no forward-mode derivative (jvp, dual numbers): use "
            "backward() or torch.autograd.grad"
        )
    if to not in ("last", "first"):
        raise ValueError(f'to must be "last" or "first"; got {shown(to)}')
    size = CHUNK if chunk is None else chunk
    check_count("chunk", size, 1)
    _check_inputs(inputs)
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "path_sum has no transforms of torch.func: use backward() or torch.autograd.grad"
        )
    paths = Paths(edge_index, num_nodes, order=order, backtracking=backtracking, by=to)
    job = _Job(message, paths, size, _Surroundings.of(edge_index.device))
    # Inference mode records nothing, whatever the grad mode says.
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    sources = Sources(inputs) if records else None
    total = job.forward(sources)
    if sources is None or not sources.tensors:
        return total
    arguments = job, [total], *sources.tensors.values()
    result: Tensor = _Recomputed.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def take(rows: Tensor, ids: Tensor) -> Tensor:
    """Return ``rows[ids]``, with a gradient that is added up in a fixed order.

    On a CPU with several threads, the gradient of ``rows[ids]`` itself is added up in the order of
    arrival: two runs differ in their last bits.

    Parameters
    ----------
    rows : Tensor [N, D]
        Node states, or positions.
    ids : Tensor [...]
        int64 or int32.

    Returns
    -------
    Tensor [..., D]

    Examples
    --------
    >>> take(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 1, 0]))
    tensor([[3., 4.],
            [3., 4.],
            [1., 2.]])
    """
    return torch.nn.functional.embedding(ids, rows)


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, Tensor):
        raise TypeError("inputs must be a sequence of tensors; got a tensor")
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"inputs must be tensors; got {shown(tensor)}")


@dataclass(frozen=True)
class _Surroundings:
    """The random state and autocast settings that a message runs under."""

    devices: tuple[torch.device, ...]
    generators: tuple[Tensor, ...]
    autocast: tuple[tuple[str, torch.dtype, bool], ...]

    @classmethod
    def of(cls, device: torch.device) -> "_Surroundings":
        devices = () if device.type == "cpu" else (device,)
        states = [torch.get_rng_state()]
        states += [torch.get_device_module(it).get_rng_state(it) for it in devices]
        kinds = [it for it in {"cpu", device.type} if torch.amp.is_autocast_available(it)]
        autocast = tuple(
            (it, torch.get_autocast_dtype(it), torch.is_autocast_enabled(it)) for it in kinds
        )
        return cls(devices, tuple(states), autocast)

    @contextmanager
    def again(self) -> Iterator[None]:
        kind = self.devices[0].type if self.devices else "cuda"
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self.devices, device_type=kind))
            torch.set_rng_state(self.generators[0])
            for device, state in zip(self.devices, self.generators[1:], strict=True):
                torch.get_device_module(device).set_rng_state(state, device)
            stack.enter_context(self.same_casts())
            yield

    @contextmanager
    def same_casts(self) -> Iterator[None]:
        """Apply the captured autocast; no chunk reuses the casts of another."""
        with ExitStack() as stack:
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            yield


@dataclass(frozen=True)
class _Job:
    """Sum in progress: the message, and the paths to sum over."""

    message: Message
    paths: Paths
    size: int
    surroundings: _Surroundings

    def forward(self, sources: Sources | None) -> Tensor:
        """Sum without a graph; add the tensors that the sums depend on to the sources."""
        total, kind = None, None
        for start, stop in self._ranges():
            path = self.paths[start:stop]
            value = self._value(path) if sources is None else self._found(path, sources)
            if total is None:
                kind = value.dtype
                total = torch.zeros(
                    (self.paths.num_nodes, value.shape[1]),
                    dtype=_sum_dtype(kind),
                    device=value.device,
                )
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
        self, grad: Tensor, tensors: Sequence[Tensor], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        wanted = [it for it, need in zip(tensors, needed, strict=True) if need]
        sums = [
            torch.zeros(it.shape, dtype=_sum_dtype(it.dtype), device=it.device) for it in wanted
        ]
        cut = GraphCut(wanted)
        leaves = [cut.leaf(it) for it in wanted]
        column = 0 if self.paths.by == "first" else -1
        with torch.enable_grad(), self.surroundings.again(), _without_hooks(wanted):
            for start, stop in self._ranges():
                path = self.paths[start:stop]
                with cut:
                    value = self._value(path)
                if not value.requires_grad:
                    continue
                of_path = grad.index_select(0, path[:, column])
                parts = torch.autograd.grad(value, leaves, of_path, allow_unused=True)
                for total, part in zip(sums, parts, strict=True):
                    if part is not None:
                        total += part
                del value, parts
        found = iter(sums)
        return [
            next(found).to(it.dtype) if need else None
            for it, need in zip(tensors, needed, strict=True)
        ]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield chunks; a graph without paths has one empty chunk, which tells the width."""
        yield from self.paths.ranges(self.size) if len(self.paths) else [(0, 0)]

    def _found(self, path: Tensor, sources: Sources) -> Tensor:
        since = now()
        with GraphCut(sources.tensors.values(), since) as cut:
            value = self._value(path)
        if value.requires_grad:
            sources.add_those_of(value, cut, since)
        return value

    def _value(self, path: Tensor) -> Tensor:
        with self.surroundings.same_casts():
            value = self.message(path)
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
        part = torch.segment_reduce(
            value.to(total.dtype), "sum", offsets=offsets.to(value.device), initial=0.0
        )
        total[first : first + len(part)] += part


@contextmanager
def _without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Disable tensor hooks, which later see the whole gradient, not the gradient of a chunk."""
    hooks = [it._backward_hooks for it in tensors if it._backward_hooks]
    kept = [dict(it) for it in hooks]
    for those in hooks:
        those.clear()
    try:
        yield
    finally:
        for those, before in zip(hooks, kept, strict=True):
            those.update(before)


def _sum_dtype(kind: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float32 for half precision."""
    return torch.float32 if kind in _HALF else kind


class _Recomputed(torch.autograd.Function):
    """Sums as an autograd function of the tensors behind the messages."""

    @staticmethod
    def forward(ctx: Any, job: _Job, total: list[Tensor], *tensors: Tensor) -> Tensor:
        """Return the sums, which come in a list, since autograd takes no list for an argument."""
        ctx.job, ctx.sources = job, tensors
        ctx.save_for_backward(*tensors)
        return total.pop()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "path_sum has no second derivative: create_graph must be False"
            )
        _ = ctx.saved_tensors  # raises if a tensor was changed in place
        parts = ctx.job.gradients(grad, ctx.sources, ctx.needs_input_grad[2:])
        return None, None, *parts
