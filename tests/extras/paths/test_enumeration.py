"""Paths by number, against recursion over edges."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.extras.paths import Paths
from support.engines import examples


def by_recursion(edges, order, backtracking):
    """Every path, by its edges: those that go by the lower node first."""
    edges = sorted(edges)
    found = [list(edge) for edge in edges]
    for _ in range(order - 1):
        found = [
            [*path, b]
            for path in found
            for a, b in edges
            if a == path[-1] and (backtracking or b != path[-2])
        ]
    return found


def tensor_of(edges):
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous()


EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14)


@examples(40)
@given(EDGES, st.integers(1, 4), st.booleans(), st.integers(1, 7))
def test_all_paths_in_order(edges, order, backtracking, size):
    """Self-loops, parallel edges and nodes without any are among them."""
    expected = by_recursion(edges, order, backtracking)
    paths = Paths(tensor_of(edges), 6, order=order, backtracking=backtracking)
    assert len(paths) == len(expected)
    assert paths[:].tolist() == expected
    assert [row for chunk in paths.chunks(size) for row in chunk.tolist()] == expected
    firsts = [path[0] for path in expected]
    assert paths.per_node().tolist() == [firsts.count(node) for node in range(6)]


@examples(20)
@given(EDGES, st.booleans())
def test_those_that_end_in_a_node_stand_together(edges, backtracking):
    expected = by_recursion([edge[::-1] for edge in edges], 3, backtracking)
    paths = Paths(tensor_of(edges), 6, backtracking=backtracking, by="last")
    assert [row[::-1] for row in paths[:].tolist()] == expected
    for start in range(0, len(paths), 3):
        stop = min(start + 3, len(paths))
        first, offsets = paths.segments(start, stop)
        ends = torch.arange(first, first + len(offsets) - 1).repeat_interleave(offsets.diff())
        assert torch.equal(ends, paths[start:stop][:, -1])


def test_a_range_is_made_without_those_before_it():
    """Make the last of 10^14 paths, and one in the middle."""
    nodes = torch.arange(100)
    edges = torch.stack([nodes.repeat_interleave(100), nodes.repeat(100)])
    paths = Paths(edges, 100, order=6, backtracking=True)
    assert len(paths) == 10**14
    assert paths[10**14 - 2 :].tolist() == [[99] * 6 + [98], [99] * 7]
    assert paths[12_345_678_901_234:12_345_678_901_235].tolist() == [[12, 34, 56, 78, 90, 12, 34]]


GOOD = tensor_of([(0, 1), (1, 2)])


@pytest.mark.parametrize(
    ("edges", "num_nodes", "options", "error", "words"),
    [
        ([[0], [1]], 2, {}, TypeError, "edge_index must be a tensor; got list"),
        (GOOD.float(), 3, {}, TypeError, "edge_index must be int64, int32; got torch.float32"),
        (GOOD.reshape(4), 3, {}, ValueError, r"edge_index must be \[2, E\]; got \(4,\)"),
        (GOOD, 2, {}, ValueError, r"edge 1 is \[1, 2\]; nodes are 0 to num_nodes - 1 = 1"),
        (GOOD, -1, {}, ValueError, "num_nodes must be at least 0; got -1"),
        (GOOD, 3, {"order": 0}, ValueError, "order must be at least 1; got 0"),
        (GOOD, 3, {"by": "end"}, ValueError, 'by must be "first" or "last"; got \'end\''),
        (
            tensor_of([(0, 0)] * 2000),
            1,
            {"order": 6, "backtracking": True},
            ValueError,
            r"more than 2\^62 paths of 6 edges",
        ),
    ],
)
def test_what_is_wrong_is_said(edges, num_nodes, options, error, words):
    with pytest.raises(error, match=words):
        Paths(edges, num_nodes, **options)


def test_chunks_have_a_size():
    with pytest.raises(ValueError, match="chunk must be at least 1; got 0"):
        list(Paths(GOOD, 3).chunks(0))
