"""Valid sums over paths, and their gradients, against recursion over edges."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fuzz.case import Case, expect
from fuzz.surroundings import anywhere
from kgfast.extras.paths import path_sum, take


def sums(case: Case) -> None:
    """Compare ``paths.path_sum`` of products of states, each times a weight of its place."""
    nodes, order = case.pick.randint(1, 7), case.pick.randint(1, 4)
    edges = case.ids(nodes, 2, case.choice((0, 1, 5, 14 if order < 4 else 7)))  # 2,744 paths
    dtype, width = case.choice((torch.float32, torch.float64)), case.choice((1, 3, 8))
    to, chunk = case.choice(("last", "first")), case.choice((None, 1, 7, 64))
    backtracking = case.chance(0.5)
    case.note(nodes=nodes, edges=edges.tolist(), order=order, backtracking=backtracking, to=to)
    case.note(dtype=dtype, width=width, chunk=chunk)
    shapes = (nodes, width), (order + 1, width), (nodes, width)
    states, weights, grad = (case.normal(*it).to(dtype) for it in shapes)
    leaves = [states.requires_grad_(), weights.requires_grad_()]

    def call() -> Tensor:
        return path_sum(
            lambda paths: _messages(paths, *leaves), edges, nodes, order=order, to=to, chunk=chunk,
            backtracking=backtracking,
        )  # fmt: skip

    with anywhere(case):
        total = call()
        found = [total.detach(), *torch.autograd.grad(total, leaves, grad)]
        expect(torch.equal(call(), found[0]), "equal calls give other bits")
    paths = torch.tensor(_recursion(edges, order, backtracking=backtracking), dtype=torch.int64)
    paths = paths.reshape(-1, order + 1)
    ends = paths[:, -1 if to == "last" else 0]
    exact = [it.detach().double() for it in (states, weights, grad)]
    wanted = _all_at_once(paths, ends, exact)
    sizes = _all_at_once(paths, ends, [it.abs() for it in exact])  # sums of all terms' moduli
    for name, got, right, size in zip(
        ("sums", "states", "weights"), found, wanted, sizes, strict=True
    ):
        allowed = (len(paths) + 4 * order + 8) * torch.finfo(dtype).eps * size + 1e-35
        wrong = (got.double() - right).abs() > allowed
        expect(not bool(wrong.any()), f"paths: {name}: {got[wrong]}, not {right[wrong]}")


def _messages(paths: Tensor, states: Tensor, weights: Tensor) -> Tensor:
    return (take(states, paths) * weights).prod(1)


def _all_at_once(paths: Tensor, ends: Tensor, given: Sequence[Tensor]) -> list[Tensor]:
    """Return float64 sums of all paths, and their gradients."""
    states, weights, grad = given
    leaves = [it.clone().requires_grad_() for it in (states, weights)]
    total = torch.zeros_like(grad).index_add(0, ends, _messages(paths, *leaves))
    return [total.detach(), *torch.autograd.grad(total, leaves, grad)]


def _recursion(edges: Tensor, order: int, *, backtracking: bool) -> list[list[int]]:
    """List the nodes of all paths, from the first to the last."""
    pairs = edges.T.tolist()
    found = [list(pair) for pair in pairs]
    for _ in range(order - 1):
        found = [
            [*path, b]
            for path in found
            for a, b in pairs
            if a == path[-1] and (backtracking or b != path[-2])
        ]
    return found
