"""Results of the top-k operator; its contract with torch is in test_rank.py."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu

BACKENDS = ["reference", *(["cpu"] if cpu.is_available() else [])]


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
