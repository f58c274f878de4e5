"""Ranks and the best k: their contract with torch, and dispatch."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.operands import Known
from support.flat import operands_of
from support.operators import opcheck


def arguments(rows: int = 9, batch: int = 2, width: int = 4) -> dict:
    generator = torch.Generator().manual_seed(0)
    return {
        "queries": torch.randn(batch, width, generator=generator),
        "candidates": torch.randn(rows, width, generator=generator),
        "targets": torch.arange(batch),
        "exclude_indptr": torch.tensor([0, 2, 3]),
        "exclude_indices": torch.tensor([4, 1, 0]),
        "score": "rotate",
    }


def call(name, queries, candidates, targets, *rest, k=3, **options):
    """Count ranks of targets, or find the best k."""
    options.pop("nan_worst", None)
    if name == "topk":
        return ops.topk(queries, candidates, k, *rest, pad=True, **options)
    return ops.rank_counts(queries, candidates, targets, *rest, **options)


EACH = pytest.mark.parametrize("name", ["rank_counts", "topk"])


@pytest.mark.parametrize("dims", [None, [1, 2]], ids=["whole", "crops"])
@EACH
def test_opcheck(backend, name, dims):
    queries, candidates, targets, indptr, indices, score = arguments().values()
    ids = torch.arange(8).flip(0) if name == "topk" else None
    operands, known = (
        operands_of(queries, candidates, score, dims=dims, candidate_ids=ids),
        Known(indptr, indices),
    )
    if name == "topk":
        opcheck(name, operands, 3, known, True)
    else:
        opcheck(name, operands, targets, known)


@EACH
def test_torch_compile_full_graph(name):
    queries, candidates, *rest = arguments().values()

    def found(queries, candidates, k):
        first, second, *_ = call(name, queries * 2, candidates, *rest, k=k)
        return first + 1, second

    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    for k in (1, 3, 4):
        both = (it(queries, candidates, k) for it in (compiled, found))
        assert all(map(torch.equal, *both))


@EACH
def test_inputs_that_require_grad_are_served(name):
    given = arguments()
    given["candidates"].requires_grad_()
    assert not any(it.requires_grad for it in call(name, *given.values()))


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


@pytest.mark.usefixtures("backend")
def test_too_few_candidates():
    table = torch.tensor([[0.0], [1.0], [2.0]])
    queries = torch.zeros(3, 1)
    known = torch.tensor([0, 0, 3, 3]), torch.tensor([2, 0, 2])
    with pytest.raises(ValueError, match=r"queries\[1\] has 1, k is 2 \(pad=True"):
        ops.topk(queries, table, 2, *known, "l1")
    with pytest.raises(ValueError, match="number of candidates, 3; got 4"):
        ops.topk(queries, table, 4, score="l1", dims=[1])
    scores, ids = ops.topk(queries, table, 4, *known, "l1", pad=True)
    rest = [-float("inf")]
    assert ids.tolist() == [[0, 1, 2, -1], [1, -1, -1, -1], [0, 1, 2, -1]]
    assert scores.tolist() == [[0, -1, -2, *rest], [-1, *rest * 3], [0, -1, -2, *rest]]


def test_backend_follows_the_device_and_can_be_forced(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.delenv("KGFAST_BACKEND", raising=False)
    assert ops.backend_for(device) == ("cpu" if cpu.is_available() else "reference")
    with ops.use_backend("reference"):
        assert ops.backend_for(device) == "reference"
    monkeypatch.setenv("KGFAST_BACKEND", "reference")
    assert ops.backend_for(device) == "reference"
    monkeypatch.setenv("KGFAST_BACKEND", "gpu")
    with pytest.raises(ValueError, match="KGFAST_BACKEND must be one of"):
        ops.backend_for(device)


def test_forcing_a_backend_that_cannot_serve(monkeypatch):
    with pytest.raises(ValueError, match="use_backend must be one of"), ops.use_backend("cuda"):
        pass
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with ops.use_backend("triton"), pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        ops.rank_counts(**arguments())
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="cannot serve tensors on meta"):
        ops.backend_for(torch.device("meta"))


def test_an_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("KGFAST_CPU_ISA", "sse9")
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="KGFAST_CPU_ISA must be one of"):
        ops.rank_counts(**arguments())
