"""The top-k operator: its contract with torch, its results, its checks."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from support.problems import make_problem

BACKENDS = ["reference", *(["cpu"] if cpu.is_available() else [])]


def arguments(rows: int = 9, batch: int = 3, width: int = 4) -> dict:
    generator = torch.Generator().manual_seed(0)
    return {
        "queries": torch.randn(batch, width, generator=generator),
        "candidates": torch.randn(rows, width, generator=generator),
        "k": 3,
        "exclude_indptr": torch.tensor([0, 2, 2, 3]),
        "exclude_indices": torch.tensor([4, 1, 0]),
        "score": "rotate",
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dims", [None, [1, 2]], ids=["whole", "crops"])
def test_opcheck(backend, dims):
    given = arguments()
    positional = (*given.values(), None, None, dims, torch.arange(8).flip(0), None, False, True)
    with ops.use_backend(backend):
        torch.library.opcheck(torch.ops.kgfast.topk, positional)


def test_torch_compile_full_graph():
    given = arguments()

    def best(queries, candidates, k):
        scores, ids = ops.topk(queries * 2, candidates, k, score="l2")
        return scores + 1, ids

    compiled = torch.compile(best, fullgraph=True, backend="aot_eager")
    for k in (1, 3, 4):
        expected = best(given["queries"], given["candidates"], k)
        found = compiled(given["queries"], given["candidates"], k)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def test_two_runs_are_equal_and_inputs_are_untouched():
    problem = make_problem(7)
    queries, table, _, indptr, indices, score = problem.args
    before = [it.clone() for it in (queries, table, indptr, indices)]
    runs = [
        ops.topk(queries, table, 3, indptr, indices, score, pad=True, **problem.kwargs)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(before, problem.args[:2] + (indptr, indices), strict=True)
    )


def test_inputs_that_require_grad_are_served():
    given = arguments()
    given["candidates"].requires_grad_()
    scores, ids = ops.topk(**given)
    assert not scores.requires_grad
    assert not ids.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_hidden_states_in_half_precision(dtype):
    """Greedy decoding: the casts are exact, so nothing but the inputs is rounded."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 16, generator=generator).to(dtype)
    weight = torch.randn(50, 16, generator=generator).to(dtype)
    scores, ids = ops.topk(hidden, weight, k=1)
    assert torch.equal(ids[:, 0], (hidden.double() @ weight.double().T).argmax(1))
    assert scores.dtype == torch.float32


def test_float64_queries_get_float64_scores():
    table = torch.tensor([[1.0], [1.0 + 2**-40]], dtype=torch.float64)
    scores, ids = ops.topk(torch.ones(1, 1, dtype=torch.float64), table, 2)
    assert scores.tolist() == [[1.0 + 2**-40, 1.0]]
    assert ids.tolist() == [[1, 0]]
    assert ops.topk(torch.ones(1, 1), table, 1)[1].item() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_few_candidates(backend):
    table = torch.tensor([[0.0], [1.0], [2.0]])
    queries = torch.zeros(3, 1)
    known = torch.tensor([0, 0, 3, 3]), torch.tensor([2, 0, 2])
    with ops.use_backend(backend):
        with pytest.raises(ValueError, match=r"queries\[1\] has 1, k is 2 \(pad=True"):
            ops.topk(queries, table, 2, *known, "l1")
        with pytest.raises(ValueError, match="number of candidates, 3; got 4"):
            ops.topk(queries, table, 4, score="l1", dims=[1, 1])
        scores, ids = ops.topk(queries, table, 4, *known, "l1", pad=True)
    rest = [-float("inf")]
    assert ids.tolist() == [[0, 1, 2, -1], [1, -1, -1, -1], [0, 1, 2, -1]]
    assert scores.tolist() == [[0, -1, -2, *rest], [-1, *rest * 3], [0, -1, -2, *rest]]
