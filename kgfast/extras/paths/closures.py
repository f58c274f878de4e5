"""The tensors with gradients that a function closes over.

A message is any function of torch, and tensors in its closure are not among the arguments. Leaves
are found in the graph of the result. A tensor with its own graph (node states) is found when
torch's functions receive the tensor, and is replaced by a leaf of equal values. Otherwise the
gradients of every chunk would flow on through that graph, and count its sources once per chunk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

Edge = tuple[Node, int]  # an output of a node: autograd's form of a tensor


class Sources:
    """Tensors that messages depend on, each once, in the order of discovery."""

    def __init__(self, named: Iterable[Tensor]) -> None:
        self.tensors: dict[Edge, Tensor] = {}
        for tensor in named:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        """Add a tensor, if the tensor has a gradient."""
        if tensor.requires_grad:
            self.tensors.setdefault(_edge(tensor), tensor)

    def add_those_of(self, value: Tensor, cut: "GraphCut", since: int) -> None:
        """Add the tensors that a message within a :class:`GraphCut` depends on.

        Raises ValueError for a tensor from outside that only an ``autograd.Function`` can have used
        unseen.
        """
        for tensor in cut.found:
            self.add(tensor)
        for node, _ in _outside(value, since):
            leaf = getattr(node, "variable", None)
            if leaf is None:
                raise ValueError(
                    f"message hands a tensor that {node.name()} made to its own "
                    "autograd.Function: hand tensor.view_as(tensor) to that function instead, so "
                    "that the tensor can be found"
                )
            if not cut.made(leaf):
                self.add(leaf)


class GraphCut(TorchFunctionMode):
    """A context in which tensors from outside that have a graph are leaves.

    ``sources`` are the known tensors. With ``since`` (:func:`now` at the begin), older tensors are
    found, too, and listed in ``found``.
    """

    def __init__(self, sources: Iterable[Tensor], since: int | None = None) -> None:
        super().__init__()
        self.since, self.found = since, list[Tensor]()
        self._leaves = {_edge(it): _leaf_of(it) for it in sources if it.grad_fn is not None}

    def made(self, leaf: Tensor) -> bool:
        """Return whether a leaf stands for another tensor."""
        return any(leaf is it for it in self._leaves.values())

    def leaf(self, tensor: Tensor) -> Tensor:
        """Return the leaf of a tensor from outside that has a graph; else the tensor."""
        node = tensor.grad_fn
        if node is None:
            return tensor
        edge = (node, tensor.output_nr)
        if edge not in self._leaves:
            if self.since is None or _age(node) > self.since:
                return tensor
            self.found.append(tensor)
            self._leaves[edge] = _leaf_of(tensor)
        return self._leaves[edge]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return func(*_changed(args, self.leaf), **_changed(kwargs or {}, self.leaf))


def now() -> int:
    """Return autograd's sequence number: nothing recorded so far has a larger one."""
    clock = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
    with torch.enable_grad():
        node = (clock + 1).grad_fn
    assert node is not None
    return _age(node)


def _age(node: Node) -> int:
    return int(node._sequence_nr())


def _edge(tensor: Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _leaf_of(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _outside(value: Tensor, since: int) -> Iterator[Edge]:
    """Yield the edges at which the graph of a value leaves the nodes recorded since."""
    leaves: dict[Edge, None] = {}
    ahead, seen = [_edge(value)], set[Node]()
    while ahead:
        node, place = ahead.pop()
        if hasattr(node, "variable"):
            leaves[node, place] = None
        elif _age(node) <= since:
            yield node, place
        elif node not in seen:
            seen.add(node)
            ahead += [(it, number) for it, number in node.next_functions if it is not None]
    yield from leaves


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(it, change) for name, it in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_changed(it, change) for it in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return tuple(items) if isinstance(value, tuple) else items
    return value
