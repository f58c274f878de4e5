"""The operator: its contract with torch, its dispatch, and its checks."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from support.problems import make_problem, no_known


def arguments(rows: int = 6, batch: int = 2, width: int = 4) -> dict:
    generator = torch.Generator().manual_seed(0)
    indptr, indices = no_known(batch)
    return {
        "queries": torch.randn(batch, width, generator=generator),
        "candidates": torch.randn(rows, width, generator=generator),
        "targets": torch.arange(batch),
        "exclude_indptr": indptr,
        "exclude_indices": indices,
        "score": "rotate",
    }


@pytest.mark.parametrize("dims", [None, [1, 2]])
def test_opcheck(dims):
    given = arguments()
    positional = (*given.values(), None, None, dims, None, None, False)
    torch.library.opcheck(torch.ops.kgfast.rank_counts, positional)


def test_torch_compile_full_graph():
    given = arguments()

    def count(queries, candidates):
        counts = ops.rank_counts(**{**given, "queries": queries * 2, "candidates": candidates})
        return counts[0] + 1

    compiled = torch.compile(count, fullgraph=True, backend="aot_eager")
    expected = count(given["queries"], given["candidates"])
    assert torch.equal(compiled(given["queries"], given["candidates"]), expected)


def test_two_runs_are_equal_and_inputs_are_untouched():
    problem = make_problem(7)
    before = [it.clone() if isinstance(it, torch.Tensor) else it for it in problem.args]
    first = ops.rank_counts(*problem.args, **problem.kwargs)
    second = ops.rank_counts(*problem.args, **problem.kwargs)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(before, problem.args, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_inputs_that_require_grad_are_served():
    given = arguments()
    given["candidates"].requires_grad_()
    assert not ops.rank_counts(**given)[0].requires_grad


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


def test_a_missing_extension_falls_back_with_one_warning(monkeypatch):
    monkeypatch.setattr(cpu, "extension", None)
    monkeypatch.setattr("kgfast.ops.dispatch._warned", set())
    with pytest.warns(RuntimeWarning, match="extension is not built"):
        counts = ops.rank_counts(**arguments())
    assert len(counts[0]) == 2
    ops.rank_counts(**arguments())  # warnings of kgfast are errors: a second one would fail


class WithoutBaseline:
    """An extension as x86 builds have it, on a machine that has some of its instruction sets."""

    def __init__(self, *names):
        self.names = names

    def find_isa(self, name):
        return name if name in self.names else "" if name or not self.names else self.names[0]


def test_a_machine_that_the_build_does_not_serve_gets_the_reference_and_is_told(monkeypatch):
    monkeypatch.setattr(cpu, "extension", WithoutBaseline())
    monkeypatch.setattr("kgfast.ops.dispatch._warned", set())
    assert cpu.available_isas() == []
    with pytest.warns(RuntimeWarning, match="without AVX2: KGFAST_BUILD_BASELINE=1"):
        counts = ops.rank_counts(**arguments())
    assert len(counts[0]) == 2
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="'cpu' is not installed"):
        ops.rank_counts(**arguments())


def test_the_baseline_of_a_build_without_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(cpu, "extension", WithoutBaseline("avx2"))
    monkeypatch.setenv("KGFAST_CPU_ISA", "baseline")
    with pytest.raises(ValueError, match="this build has no such kernels; KGFAST_BUILD_BASELINE=1"):
        cpu.isa()
    monkeypatch.setenv("KGFAST_CPU_ISA", "avx512")
    with pytest.raises(ValueError, match="avx512: this machine does not"):
        cpu.isa()


def test_an_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("KGFAST_CPU_ISA", "sse9")
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="KGFAST_CPU_ISA must be one of"):
        ops.rank_counts(**arguments())


BAD = {
    "unknown score": ({"score": "cosine"}, ValueError, "score must be one of dot, l1"),
    "queries not a tensor": ({"queries": [[1.0]]}, TypeError, "queries must be a tensor"),
    "queries of one axis": ({"queries": torch.zeros(4)}, ValueError, "queries must have two axes"),
    "half queries": ({"queries": torch.zeros(2, 4).half()}, TypeError, "queries must be float32"),
    "integer table": (
        {"candidates": torch.zeros(6, 4).long()},
        TypeError,
        "candidates must be float32, float16, bfloat16, float64",
    ),
    "odd width": (
        {"queries": torch.zeros(2, 3), "candidates": torch.zeros(6, 3)},
        ValueError,
        "needs rows of pairs re, im; got 3 columns",
    ),
    "widths differ": ({"queries": torch.zeros(2, 6)}, ValueError, "queries must have 4 columns"),
    "devices differ": (
        {"queries": torch.zeros(2, 4, device="meta")},
        ValueError,
        "queries must be on cpu",
    ),
    "targets too long": (
        {"targets": torch.arange(3)},
        ValueError,
        r"targets must have shape \[2\]",
    ),
    "int32 targets": ({"targets": torch.arange(2).int()}, TypeError, "targets must be int64"),
    "target out of range": (
        {"targets": torch.tensor([0, 6])},
        ValueError,
        r"targets\[1\] must be in 0 .. 5; got 6",
    ),
    "negative target": (
        {"targets": torch.tensor([-1, 0])},
        ValueError,
        r"targets\[0\] must be in 0 .. 5; got -1",
    ),
    "excluded id out of range": (
        {"exclude_indptr": torch.tensor([0, 1, 1]), "exclude_indices": torch.tensor([9])},
        ValueError,
        r"exclude_indices\[0\] must be in 0 .. 5; got 9",
    ),
    "indptr falls": (
        {"exclude_indptr": torch.tensor([0, 2, 1]), "exclude_indices": torch.tensor([1])},
        ValueError,
        "exclude_indptr must rise from 0",
    ),
    "indptr too short": ({"exclude_indptr": torch.zeros(2).long()}, ValueError, "exclude_indptr"),
    "bias of another length": ({"bias": torch.zeros(5)}, ValueError, r"bias must have shape \[6\]"),
    "integer bias": ({"bias": torch.zeros(6).long()}, TypeError, "bias must be a floating-point"),
    "factor": ({"factor": torch.zeros(6, 2)}, ValueError, "factor: score rotate takes none"),
    "no dims": ({"dims": []}, ValueError, "dims must name at least one"),
    "dim too large": ({"dims": [1, 3]}, ValueError, r"dims\[1\] must be in 1 .. 2; got 3"),
    "dim zero": ({"dims": [0]}, ValueError, r"dims\[0\] must be in 1 .. 2; got 0"),
    "float dim": ({"dims": [1.5]}, TypeError, r"dims\[0\] must be an int"),
    "repeated candidate": (
        {"candidate_ids": torch.tensor([4, 1, 4])},
        ValueError,
        r"candidate_ids\[2\] must not repeat an earlier id; got 4 again",
    ),
    "candidate out of range": (
        {"candidate_ids": torch.tensor([4, -2])},
        ValueError,
        r"candidate_ids\[1\] must be in 0 .. 5; got -2",
    ),
    "bias with NaN": (
        {"bias": torch.tensor([0.0, float("nan"), 0, 0, 0, 0])},
        ValueError,
        "bias: row 1 holds a NaN",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    change, error, message = BAD[name]
    with pytest.raises(error, match=message):
        ops.rank_counts(**{**arguments(), **change})


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nan_worst(backend):
    """A NaN candidate ranks below all; a NaN target below every other candidate."""
    table = torch.tensor([[0.0], [1.0], [float("nan")], [3.0]])
    queries = torch.zeros(3, 1)
    targets = torch.tensor([1, 2, 3])
    known = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0])
    with ops.use_backend(backend):
        counts = ops.rank_counts(queries, table, targets, *known, "l1", nan_worst=True)
    assert [it.tolist() for it in counts] == [[1, 3, 2], [0, 0, 0], [1, 1, 0], [0, 0, 0]]
