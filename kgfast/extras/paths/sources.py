"""What a function depends on: the tensors with gradients that it closes over.

A message is any function of torch. What it closes over is not among its arguments; leaves are found
in the graph of its result. A tensor that has a graph of its own (node states) is seen where torch's
functions get it, and replaced by a leaf of the same values: else the gradients of a chunk would
flow on through that graph, once a chunk, and count twice what both lead to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

Edge = tuple[Node, int]  # an output of a node: what a tensor is to autograd


class Sources:
    """Tensors that messages depend on, each once, in the order in which they were found.

    Attributes
    ----------
    tensors : dict
        By their place in autograd's graph.
    """

    def __init__(self, named: Iterable[Tensor]) -> None:
        self.tensors: dict[Edge, Tensor] = {}
        for tensor in named:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        """A tensor, if it has a gradient."""
        if tensor.requires_grad:
            self.tensors.setdefault(_edge(tensor), tensor)

    def add_those_of(self, value: Tensor, cut: "GraphCut", since: int) -> None:
        """Add what a message within a :class:`GraphCut` depends on.

        Raises
        ------
        ValueError
            If it depends on another tensor from outside, which only an ``autograd.Function`` can
            have got unseen.
        """
        for tensor in cut.found:
            self.add(tensor)
        for node, _ in _outside(value, since):
            leaf = getattr(node, "variable", None)
            if leaf is None:
                raise ValueError(
                    f"message hands a tensor that {node.name()} made to an autograd.Function of "
                    f"its own: hand it tensor.view_as(tensor) instead, so that it can be found"
                )
            if not cut.made(leaf):
                self.add(leaf)


class GraphCut(TorchFunctionMode):
    """Within it, tensors from outside that have a graph are leaves.

    Parameters
    ----------
    sources : Sequence of Tensor
        Those that are known.
    since : int, optional
        :func:`now`, as it begins: others that are older are found, and kept in ``found``.
    """

    def __init__(self, sources: Iterable[Tensor], since: int | None = None) -> None:
        super().__init__()
        self.since, self.found = since, list[Tensor]()
        self._leaves = {_edge(it): _leaf_of(it) for it in sources if it.grad_fn is not None}

    def made(self, leaf: Tensor) -> bool:
        """Whether it stands for another tensor."""
        return any(leaf is it for it in self._leaves.values())

    def leaf(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor: itself, unless it has a graph from outside."""
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
    """A time by autograd's clock: what this thread has recorded so far has no later one."""
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
    """Where the graph of a value leaves what was recorded since."""
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
    """The same arguments, with their tensors changed."""
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
