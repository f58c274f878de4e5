"""Sums over paths and their gradients, against all paths at once."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding

from kgfast.extras.paths import Paths, angle, path_sum, torsion

NODES, WIDTH = 7, 3


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def graph(seed=0, num_edges=20):
    ends = torch.randint(NODES, (2, num_edges), generator=torch.Generator().manual_seed(seed))
    return ends[:, ends[0] != ends[1]]


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


def held(message, edges, num_nodes=NODES, order=3, to="last", backtracking=False):
    """All paths at once."""
    path = Paths(edges, num_nodes, order=order, backtracking=backtracking)[:]
    value = message(path)
    total = torch.zeros(num_nodes, value.shape[1], dtype=value.dtype)
    return total.index_add(0, path[:, 0 if to == "first" else -1], value)


def network():
    """States, positions, and a layer: a message of all that a path is."""
    states, positions = randn(NODES, WIDTH), randn(NODES, 3, seed=1)
    torch.manual_seed(2)
    layer = nn.Linear(4 * WIDTH + 3, WIDTH, dtype=torch.float64)

    def message(path):
        i, j, k, p = (embedding(ids, positions) for ids in path.unbind(1))
        lies = torch.stack([(p - i).norm(dim=1), angle(i, j, k), torsion(i, j, k, p)], dim=1)
        return torch.tanh(layer(torch.cat([embedding(path, states).flatten(1), lies], dim=1)))

    return message, [states, positions, *layer.parameters()]


@pytest.mark.parametrize("to", ["last", "first"])
@pytest.mark.parametrize("backtracking", [False, True])
def test_sums_and_gradients_are_those_of_all_at_once(to, backtracking):
    """Chunks end anywhere; what the message closes over is found without its name."""
    message, sources = network()
    options = {"to": to, "backtracking": backtracking}
    expected = held(message, graph(), **options)
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, sources, weight)
    for chunk in (7, None):
        found = path_sum(message, graph(), NODES, chunk=chunk, **options)
        torch.testing.assert_close(found, expected)
        for ours, theirs in zip(
            torch.autograd.grad(found, sources, weight), gradients, strict=True
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_orders(order):
    states = randn(NODES, WIDTH)
    edges = graph(num_edges=12)

    def message(path):
        return states[path].prod(1)

    expected = held(message, edges, order=order)
    found = path_sum(message, edges, NODES, order=order, chunk=4)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("grad", "inference"), [(False, False), (False, True), (True, True)])
def test_sums_where_nothing_is_recorded(grad, inference):
    message, _ = network()
    expected = path_sum(message, graph(), NODES, chunk=7)
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        found = path_sum(message, graph(), NODES, chunk=7)
        assert path_sum(message, graph(num_edges=0), NODES).shape == expected.shape
    assert not found.requires_grad
    assert torch.equal(found, expected)


class TestInputs:
    def test_results_of_others_beside_what_they_are_made_of(self):
        """A message takes a tensor, and closes over the leaf that the tensor was made of."""
        leaf, edges = randn(NODES, WIDTH), graph()

        def message(path, hidden):
            return hidden[path[:, 0]] * leaf[path[:, 1]]

        def total(sum_of):
            hidden = leaf.exp()
            return (sum_of(hidden) + hidden).sum()

        expected = total(lambda hidden: held(lambda path: message(path, hidden), edges))
        found = total(lambda hidden: path_sum(message, edges, NODES, inputs=[hidden], chunk=8))
        torch.testing.assert_close(found, expected)
        (ours,), (theirs,) = (torch.autograd.grad(it, leaf) for it in (found, expected))
        torch.testing.assert_close(ours, theirs)

    def test_results_of_others_that_are_no_inputs_are_an_error(self):
        states = randn(NODES, WIDTH).exp()
        with pytest.raises(ValueError, match=r"a tensor that ExpBackward0 made: name it in inputs"):
            path_sum(lambda path: states[path[:, 0]], graph(), NODES)

    def test_what_only_some_chunks_need_is_found(self):
        first, second = randn(NODES, WIDTH), randn(NODES, WIDTH, seed=1)
        turn = []

        def message(path):
            turn.append(1)
            return (first if len(turn) == 1 else second)[path[:, 0]]

        found = path_sum(message, graph(), NODES, chunk=20)
        turn.clear()
        found.sum().backward()
        assert float(first.grad.sum()) == 20 * WIDTH
        assert float(second.grad.sum()) == (len(Paths(graph(), NODES)) - 20) * WIDTH

    def test_constants_make_no_graph(self):
        states = torch.ones(NODES, WIDTH)
        assert not path_sum(lambda path: states[path[:, 0]], graph(), NODES).requires_grad


class TestAutograd:
    def test_hooks_and_twice(self):
        message, sources = network()
        seen = []
        handle = sources[2].register_hook(lambda grad: seen.append(grad.clone()))
        total = path_sum(message, graph(), NODES, chunk=9)
        total.sum().backward(retain_graph=True)
        first = [it.grad.clone() for it in sources]
        total.sum().backward()
        handle.remove()
        assert len(seen) == 2, "a hook sees a call's gradient once, not once a chunk"
        for source, grad in zip(sources, first, strict=True):
            assert torch.equal(source.grad, 2 * grad)

    def test_equal_calls_give_equal_bits(self, two_threads):
        """``embedding`` has equal bits; threads share that of ``states[path]``."""
        states = torch.randn(20, 64, requires_grad=True)
        edges = torch.randint(20, (2, 200), generator=torch.Generator().manual_seed(0))
        runs = []
        for _ in range(3):
            total = path_sum(lambda path: embedding(path, states).prod(1), edges, 20)
            runs.append((total, *torch.autograd.grad(total.sum(), states)))
        for run in runs[1:]:
            assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))

    def test_the_same_random_numbers(self):
        """Dropout of the backward is that of the forward, and the stream goes on as it would."""
        states = torch.ones(NODES, WIDTH, requires_grad=True)
        torch.manual_seed(0)
        total = path_sum(
            lambda path: nn.functional.dropout(states[path[:, 0]]), graph(), NODES, chunk=6
        )
        after = torch.get_rng_state()
        total.sum().backward()
        assert torch.equal(torch.get_rng_state(), after)
        torch.testing.assert_close(states.grad.sum(), total.detach().sum())

    def test_the_same_autocast(self):
        weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
        states = torch.randn(NODES, WIDTH)
        kinds = []

        def message(path):
            kinds.append((states[path[:, 0]] @ weight).dtype)
            return states[path[:, 0]] @ weight

        with torch.autocast("cpu", torch.bfloat16):
            total = path_sum(message, graph(), NODES, chunk=16)
        total.sum().backward()
        assert total.dtype == torch.bfloat16
        assert weight.grad.dtype == torch.float32
        assert set(kinds) == {torch.bfloat16}

    def test_half_precision_is_added_up_in_float32(self):
        ones = torch.ones(2, 1, dtype=torch.bfloat16, requires_grad=True)
        edges = torch.tensor([[0] * 1000, [1] * 1000])
        total = path_sum(lambda path: ones[path[:, 0]], edges, 2, order=1, chunk=10)
        assert float(total[1].detach()) == 1000  # bfloat16 counts to 256
        total.sum().backward()
        assert float(ones.grad[0]) == 1000

    def test_other_derivatives_are_refused(self):
        states = randn(NODES, WIDTH)

        def total(states):
            return path_sum(
                lambda path, states: states[path[:, 0]] ** 2, graph(), NODES, inputs=[states]
            ).sum()

        with pytest.raises(NotImplementedError, match="create_graph must be False"):
            torch.autograd.grad(total(states), states, create_graph=True)
        with pytest.raises(RuntimeError, match="functorch"):
            torch.func.grad(total)(states.detach())
        with pytest.raises(RuntimeError, match="functorch"):
            torch.func.jvp(total, (states.detach(),), (states.detach(),))


def test_a_chunk_is_gone_when_the_next_begins():
    """Activations of one chunk at most are held, in the forward and in the backward."""
    states, alive, sizes = randn(NODES, WIDTH), [], []

    def message(path, states):
        assert [ref for ref in alive if ref() is not None] == []
        activation = states[path].sin()
        alive.append(weakref.ref(activation))
        sizes.append(len(path))
        return activation.prod(1)

    path_sum(message, graph(), NODES, inputs=[states], chunk=11).sum().backward()
    count = len(Paths(graph(), NODES))
    assert max(sizes) == 11
    assert sum(sizes) == 2 * count


class TestNothing:
    @pytest.mark.parametrize("num_nodes", [0, 4])
    def test_no_path_is_zeros(self, num_nodes):
        weight = randn(4, WIDTH)
        none = torch.empty(2, 0, dtype=torch.int64)
        total = path_sum(lambda path: path.double() @ weight, none, num_nodes)
        assert torch.equal(total, torch.zeros(num_nodes, WIDTH, dtype=torch.float64))
        total.sum().backward()
        assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (lambda path: 1.0, TypeError, "message must return a tensor; got float"),
        (lambda path: path[:, 0].double(), ValueError, r"\[P, H\], \[5, H\] .* got \[5\]"),
        (lambda path: path[1:].double(), ValueError, r"\[5, H\] for these paths; got \[4, 4\]"),
        (lambda path: path, TypeError, "message must return floats; got torch.int64"),
    ],
)
def test_messages_of_another_shape_are_errors(message, error, words):
    with pytest.raises(error, match=words):
        path_sum(message, graph(), NODES, chunk=5)


def test_a_width_that_changes_is_an_error():
    widths = iter((1, 2))
    words = "torch.float32 of width 1 for the first paths and torch.float32 of width 2 for those"
    with pytest.raises(ValueError, match=words):
        path_sum(lambda path: torch.ones(len(path), next(widths)), graph(), NODES, chunk=5)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"to": "middle"}, ValueError, 'to must be "last" or "first"; got \'middle\''),
        ({"chunk": 0}, ValueError, "chunk must be at least 1; got 0"),
        ({"chunk": 2.5}, TypeError, r"chunk must be an int; got 2\.5"),
        ({"inputs": torch.ones(2)}, TypeError, "inputs must be a sequence of tensors"),
        ({"inputs": [3]}, TypeError, r"inputs must be a sequence of tensors; got \[3\]"),
        ({"num_nodes": 2}, ValueError, r"edge_index: edge \d+ is \[\d, \d\]; nodes are 0 to"),
        ({"order": 0}, ValueError, "order must be at least 1"),
    ],
)
def test_wrong_arguments_are_errors(options, error, words):
    arguments = {"num_nodes": NODES} | options
    with pytest.raises(error, match=words):
        path_sum(lambda path: path.double(), graph(), **arguments)
