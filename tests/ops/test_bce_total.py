"""bce_total: the bits of bce and of its backward, from one sweep."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import losses
from kgfast.kernels.scores import get_score
from support.memory import PeakMemory
from support.problems import SCORES

POSITIVES = torch.tensor([0, 2, 3, 7, 9]), torch.tensor([22, 3, 0, 5, 9, 5, 22, 1, 4])
LABELS = (0.9, 0.1 / 23)
EACH_SCORE = pytest.mark.parametrize("score", SCORES)
BIASES = pytest.mark.parametrize("bias_shape", [(23,), (1,), None], ids=["own", "one", "none"])


def operands(score, bias_shape=(23,), dtype=torch.float32):
    """Queries, table and bias that require gradients."""
    generator = torch.Generator().manual_seed(1)
    width = 17 * get_score(score).planes
    shapes = [(4, width), (23, width), *([bias_shape] if bias_shape else [])]
    made = [torch.randn(*shape, generator=generator, dtype=dtype) / 3 for shape in shapes]
    return [it.requires_grad_() for it in made] + [None] * (3 - len(made))


def total_of(tensors, score, divisor=1.0):
    return ops.bce_total(*tensors, *POSITIVES, *LABELS, score, divisor)


def rows_of(tensors, score):
    return ops.bce(*tensors, *POSITIVES, *LABELS, score)


def gradients(value, tensors):
    return torch.autograd.grad(value, [it for it in tensors if it is not None])


@EACH_SCORE
@BIASES
@pytest.mark.parametrize("divisor", [1.0, 4 * 23])
def test_bits_are_those_of_two_sweeps(backend, score, bias_shape, divisor):
    tensors = operands(score, bias_shape)
    once, twice = total_of(tensors, score, divisor), rows_of(tensors, score).sum() / divisor
    if backend == "triton":  # which divides rows
        torch.testing.assert_close(once, twice)
    else:
        assert torch.equal(once, twice)
    pairs = zip(gradients(once, tensors), gradients(twice, tensors), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("factor", [4.0, 0.3])
@pytest.mark.usefixtures("backend")
def test_a_gradient_of_the_total_scales_its_own(factor):
    tensors = operands("rotate")
    once = gradients(factor * total_of(tensors, "rotate"), tensors)
    twice = gradients(factor * rows_of(tensors, "rotate").sum(), tensors)
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("backend")
def test_float64_is_served_in_float64():
    tensors = operands("rotate", dtype=torch.float64)
    once, twice = total_of(tensors, "rotate"), rows_of(tensors, "rotate").sum()
    assert once.dtype == torch.float64
    assert torch.equal(once, twice)
    pairs = zip(gradients(once, tensors), gradients(twice, tensors), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def asked(monkeypatch):
    """The kernels that were asked for, and with which ``need``."""
    names = []
    for name in ("bce", "bce_gradients", "bce_total"):
        inner = getattr(losses.ChunkedLosses, name)

        def watched(*args, inner=inner, name=name):
            names.append((name, tuple(args[4]) if len(args) > 4 else None))
            return inner(*args)

        monkeypatch.setattr(losses.ChunkedLosses, name, watched)
    with ops.use_backend("reference"):
        yield names


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_sweep_makes_what_is_needed(asked, wanted):
    tensors = [it.detach() for it in operands("l2")]
    tensors[wanted].requires_grad_()
    total_of(tensors, "l2").backward()
    assert asked == [("bce_total", tuple(i == wanted for i in range(3)))]
    assert [it.grad is not None for it in tensors] == [i == wanted for i in range(3)]


def test_without_a_gradient_there_is_none(asked):
    total_of([it.detach() for it in operands("dot")], "dot")
    with torch.no_grad():
        total_of(operands("dot"), "dot")
    assert asked == [("bce", None)] * 2


@pytest.mark.parametrize("place", [1, 2], ids=["table", "bias"])
def test_half_precision_is_scaled_before_it_is_rounded(asked, place):
    tensors = operands("dot")
    tensors[place] = tensors[place].detach().half().requires_grad_()
    divisor = 2.0**24  # such gradients vanish in float16 ...
    scaled = gradients(2.0**20 * total_of(tensors, "dot", divisor), tensors)  # ... but these do not
    assert bool(scaled[place].any())
    assert [name for name, _ in asked] == ["bce", "bce_gradients"]


@pytest.mark.usefixtures("backend")
def test_an_empty_batch():
    queries, table, bias = operands("dot")
    none = torch.tensor([0]), torch.empty(0, dtype=torch.int64)
    total = ops.bce_total(queries[:0], table, bias, *none, 1.0, 0.0, "dot")
    assert total.item() == 0
    assert not any(bool(it.any()) for it in gradients(total, [queries, table, bias]))


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.3), (0.3, 4.0)])
@pytest.mark.usefixtures("backend")
def test_a_graph_that_is_retained_gives_the_same_gradients_again(factors):
    tensors = operands("rotate")
    total = total_of(tensors, "rotate")
    results = []
    for factor in factors:
        results.append(torch.autograd.grad(factor * total, tensors, retain_graph=True))
        expected = gradients(factor * total_of(tensors, "rotate"), tensors)
        assert all(torch.equal(*pair) for pair in zip(results[-1], expected, strict=True))
    kept = [it.clone() for it in results[0]]
    for one in results[1]:
        one.zero_()  # it shares nothing with what the first one gave
    assert all(torch.equal(*pair) for pair in zip(results[0], kept, strict=True))


@pytest.mark.usefixtures("backend")
def test_part_of_the_gradients_and_then_the_rest():
    tensors = operands("rotate")
    total = total_of(tensors, "rotate")
    first = torch.autograd.grad(total, tensors[1], retain_graph=True)
    rest = torch.autograd.grad(total, [tensors[0], tensors[2]])
    expected = gradients(total_of(tensors, "rotate"), tensors)
    found = (rest[0], *first, rest[1])
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.usefixtures("backend")
def test_two_losses_of_one_table_add_up():
    tensors = operands("rotate")
    (total_of(tensors, "rotate") + total_of(tensors, "rotate", 3.0)).backward()
    alone = gradients(total_of(tensors, "rotate"), tensors)
    third = gradients(total_of(tensors, "rotate", 3.0), tensors)
    for tensor, one, other in zip(tensors, alone, third, strict=True):
        assert torch.equal(tensor.grad, one + other)


def test_a_graph_that_is_freed_has_no_second_backward():
    tensors = operands("dot")
    total = total_of(tensors, "dot")
    total.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        total.backward()


def test_what_was_changed_since_the_forward_has_no_gradient():
    tensors = operands("dot")
    total = total_of(tensors, "dot")
    with torch.no_grad():
        tensors[1].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.usefixtures("backend")
def test_the_gradient_of_the_table_is_held_once():
    """A table of 64 MiB has a gradient of 64 MiB, and there is no second one."""
    generator = torch.Generator().manual_seed(0)
    rows, width = 1 << 18, 64
    table = torch.randn(rows, width, generator=generator).requires_grad_()
    queries = torch.randn(4, width, generator=generator).requires_grad_()
    labels = (torch.arange(5), torch.arange(4), 1.0, 0.0, "dot")
    ops.bce_total(queries, table[:8], None, *labels).backward()
    table.grad = None
    with PeakMemory("cpu") as peak:
        ops.bce_total(queries, table, None, *labels, float(rows)).backward()
    assert peak.bytes < 1.8 * table.nbytes
    assert table.grad is not None


def test_there_is_no_second_derivative(backend):
    tensors = operands("rotate")
    (first,) = torch.autograd.grad(total_of(tensors, "rotate"), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"bce_total and .* can be differentiated once"):
        first.sum().backward()


@BIASES
def test_opcheck(backend, bias_shape):
    tensors = operands("rotate", bias_shape)
    for need in ([True, True, bias_shape is not None], [False, True, False]):
        leaves = [
            it if it is None or needed else it.detach()
            for it, needed in zip(tensors, need, strict=True)
        ]
        args = (*leaves, *POSITIVES, *LABELS, "rotate", "float32", 92.0, backend, need)
        torch.library.opcheck(torch.ops.kgfast.bce_total, args)
    shapes = (4, 3), (5, 3), (0,)
    args = (torch.tensor(0.5), *map(torch.ones, shapes), *map(torch.ones, shapes[:2]), None)
    torch.library.opcheck(torch.ops.kgfast.total_backward, args)


@pytest.mark.usefixtures("backend")
def test_torch_compile_full_graph():
    from torch._dynamo.backends.common import aot_autograd  # which take two CPU seconds
    from torch._functorch.aot_autograd import make_boxed_func

    tensors = operands("rotate")

    def loss(queries, table, bias):
        return 2 * total_of((queries * 2, table, bias), "rotate", 7.0)

    products = []

    def seen(graph, _):
        products.append([node.name for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=seen
    )
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    results = [it(*tensors) for it in (loss, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(gradients(it, tensors) for it in results))
    # The compiler sees how gradients are scaled, so that it may do it in place.
    assert all(name.startswith("mul") for name in products[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("backend")
def test_autocast_computes_in_float32(dtype):
    queries, table, bias = operands("dot")
    half = queries.detach().to(dtype).requires_grad_()
    expected = total_of((half.float(), table, bias), "dot")
    with torch.autocast("cpu", dtype=dtype):
        total = total_of((half, table, bias), "dot")
    assert torch.equal(total, expected)
    found = gradients(total, [half, table])
    assert [it.dtype for it in found] == [dtype, torch.float32]


BAD = {
    "divisor": ({"divisor": 0.0}, "divisor must be positive; got 0.0"),
    "nan": ({"divisor": float("nan")}, "divisor must be finite; got nan"),
    "label": ({"label_a": float("inf")}, "label_a must be finite"),
    "indptr": ({"positive_indptr": torch.tensor([0, 9])}, "positive_indptr"),
    "ids": ({"positive_indices": POSITIVES[1] + 1}, "positive_indices"),
    "score": ({"score": "cosine"}, "score"),
    "queries": ({"queries": torch.full((4, 17), torch.nan)}, "queries: row 0 holds a NaN"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(backend, name):
    change, message = BAD[name]
    names = ("queries", "candidates", "bias", "positive_indptr", "positive_indices")
    given = dict(zip(names, (*operands("dot"), *POSITIVES), strict=True))
    given |= {"label_a": 1.0, "label_c": 0.0, "score": "dot"} | change
    with pytest.raises(ValueError, match=message):
        ops.bce_total(**given)
