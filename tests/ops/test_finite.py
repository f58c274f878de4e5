"""Numbers that are not finite: the same rule for every operator, backend and score."""

import pytest
import torch

from kgfast import DistMult, TransE, losses, ops
from kgfast.kernels import cpu
from support.engines import INTERPRETED
from support.interpreted import run_interpreted
from support.problems import SCORES

INF, NAN = float("inf"), float("nan")
B, N, WIDTH = 3, 9, 4
ELSEWHERE = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")


@pytest.fixture(params=["reference", "cpu", pytest.param("triton", marks=ELSEWHERE)])
def backend(request):
    """Each backend; Triton's kernels where they are interpreted (test_triton_* run those)."""
    name = request.param
    if name == "cpu" and not cpu.is_available():
        pytest.skip("the extension is not built")
    with ops.use_backend(name):
        yield name


def operands(score="rotate", seed=0):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(B, WIDTH, generator=generator)
    return {"queries": queries, "candidates": torch.randn(N, WIDTH, generator=generator)}


TARGETS = torch.tensor([0, 4, 4])
NONE = torch.zeros(B + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
CSR = torch.tensor([0, 1, 3, 4]), torch.tensor([0, 4, 1, 4])
INDEX = torch.tensor([[0, 5], [5, 1], [7, 7]])


def leaf(rows):
    return rows.clone().requires_grad_()


# Calls of operators with queries, candidates, a score and a bias or None.
RANKS = {
    "rank": lambda q, c, score, bias: ops.rank_counts(q, c, TARGETS, *NONE, score, bias=bias),
    "topk": lambda q, c, score, bias: ops.topk(q, c, 2, score=score, bias=bias),
}
SCORES_OF = {
    "pairwise": lambda q, c, score, bias: ops.pairwise_scores(q, c, score, bias=bias),
    "indexed": lambda q, c, score, bias: ops.indexed_scores(q, c, INDEX, score, bias=bias),
}
LABELS = *CSR, 1.0, 0.0
LOSSES = {
    "bce": lambda q, c, score, bias: ops.bce(q, c, bias, *LABELS, score),
    "bce_total": lambda q, c, score, bias: ops.bce(leaf(q), c, bias, *LABELS, score, divisor=1.0),
    "cross_entropy": lambda q, c, score, bias: ops.cross_entropy(q, c, bias, TARGETS, 0.0, score),
    "cross_entropy_total": lambda q, c, score, bias: ops.cross_entropy(
        leaf(q), c, bias, TARGETS, 0.0, score, divisor=1.0
    ),
}
CALLS = RANKS | SCORES_OF | LOSSES


def call(name, given, score, bias=None):
    return CALLS[name](given["queries"], given["candidates"], score, bias)


EACH = pytest.mark.parametrize("operator", CALLS)


@EACH
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_that_takes_part_is_named(backend, operator, score, value):
    if backend == "triton" and score != "rotate":
        pytest.skip("one score is enough where it is slow")
    for name, row in (("queries", 1), ("candidates", 5)):
        given = operands(score)
        given[name][row, 2] = value
        called = "table" if operator == "indexed" and name == "candidates" else name
        with pytest.raises(ValueError, match=f"{called}: row {row} holds a NaN or an infinity"):
            call(operator, given, score)


@EACH
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("size", [N, 1])
def test_a_bias_is_named(backend, operator, value, size):
    bias = torch.zeros(size)
    bias[5 % size] = value
    with pytest.raises(ValueError, match=f"bias: row {5 % size} holds a NaN or an infinity"):
        call(operator, operands(), "l1", bias)


def test_rows_that_take_no_part_may_be_anything(backend):
    given = operands()
    given["candidates"][2] = NAN  # no index names it
    plain = call("indexed", given, "dot")
    assert plain.isfinite().all()
    bias = torch.zeros(N)
    bias[2] = NAN
    assert torch.equal(plain, call("indexed", given, "dot", bias))


def test_features_beyond_the_crop_may_be_anything(backend):
    given = operands()
    given["candidates"][:, 2] = NAN
    given["queries"][:, 3] = INF
    assert ops.pairwise_scores(*given.values(), "l1", dims=[1, 2]).isfinite().all()
    with pytest.raises(ValueError, match="queries: row 0 holds"):
        ops.pairwise_scores(*given.values(), "l1", dims=[1, 4])


def test_a_factor_is_named(backend):
    queries, table = torch.ones(B, 6), torch.ones(N, 2)
    factor = torch.ones(N, 2)
    factor[5, 1] = INF
    for call, *given in (
        (ops.pairwise_scores,),
        (ops.indexed_scores, INDEX),
        (ops.rank_counts, TARGETS, *NONE),
    ):
        with pytest.raises(ValueError, match="factor: row 5 holds a NaN or an infinity"):
            call(queries, table, *given, "rscf_l1", factor=factor)


@pytest.mark.parametrize("subset", [None, [5, 0]])
def test_a_candidate_is_named_though_no_target_has_a_score(backend, subset):
    """The target's score overflows to inf - inf: no comparison needs the other candidates."""
    most = torch.finfo(torch.float64).max
    queries = torch.full((1, 2), most, dtype=torch.float64)
    table = torch.ones(7, 2, dtype=torch.float64)
    table[0] = torch.tensor([most, -most], dtype=torch.float64)
    table[5, 1] = NAN
    ids = None if subset is None else torch.tensor(subset)
    given = (queries, table, torch.tensor([0]), NONE[0][:2], NONE[1], "dot")
    with pytest.raises(ValueError, match="candidates: row 5 holds a NaN or an infinity"):
        ops.rank_counts(*given, candidate_ids=ids)
    others = torch.tensor([1, 2])
    assert ops.rank_counts(*given, candidate_ids=others)[0].tolist() == [2]


@pytest.mark.parametrize("operator", LOSSES)
@pytest.mark.parametrize("masked", [[5], [2, 3, 5, 6, 7, 8]])
def test_a_bias_of_minus_infinity_leaves_candidates_out(backend, operator, masked):
    given, bias = operands(), torch.linspace(-1, 1, N)
    kept = [it for it in range(N) if it not in masked]
    table = given["candidates"].requires_grad_()
    place = {it: at for at, it in enumerate(kept)}
    with_mask = bias.clone()
    with_mask[masked] = -INF
    with_mask.requires_grad_()
    got = call(operator, given, "rotate", with_mask).sum()
    slope, of_bias = torch.autograd.grad(got, [table, with_mask])
    rest = table[kept].detach().requires_grad_()
    rest_bias = bias[kept].clone().requires_grad_()
    targets, csr = torch.tensor([place[int(it)] for it in TARGETS]), CSR[1].clone()
    csr.apply_(lambda it: place[it])
    if operator.startswith("cross_entropy"):
        want = ops.cross_entropy(given["queries"], rest, rest_bias, targets, 0.0, "rotate").sum()
    else:
        want = ops.bce(given["queries"], rest, rest_bias, CSR[0], csr, 1.0, 0.0, "rotate").sum()
    wanted, wanted_bias = torch.autograd.grad(want, [rest, rest_bias])
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(slope[kept], wanted)
    torch.testing.assert_close(of_bias[kept], wanted_bias)
    assert not slope[masked].any()
    assert not of_bias[masked].any()


def test_a_mask_of_what_has_a_label_is_refused(backend):
    given, bias = operands(), torch.zeros(N)
    bias[4] = -INF
    both = (*given.values(), bias)
    with pytest.raises(ValueError, match=r"bias: row 4 is -inf.* targets and"):
        ops.cross_entropy(*both, TARGETS, 0.0, "dot")
    with pytest.raises(ValueError, match=r"bias: row 4 is -inf.* positive_indices"):
        ops.bce(*both, *CSR, 1.0, 0.0, "dot")
    bias[4], bias[7] = 0.0, -INF
    with pytest.raises(ValueError, match=r"bias: row 7 is -inf.* label_smoothing must"):
        ops.cross_entropy(*both, TARGETS, 0.1, "dot")
    with pytest.raises(ValueError, match=r"bias: row 7 is -inf.* label_c must"):
        ops.bce(*both, *CSR, 1.0, 0.1, "dot")
    everything = torch.tensor([-INF])
    with pytest.raises(ValueError, match=r"bias: row 0 is -inf"):
        ops.cross_entropy(*given.values(), everything, TARGETS, 0.0, "dot")


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("pool", [True, False])
def test_sampled_losses_name_the_row(backend, value, pool):
    if backend == "triton":
        pytest.skip("the operators are tested above")
    negatives = torch.tensor([2, 7]) if pool else torch.tensor([[2, 7], [3, 2]])
    for model in (TransE.init(N, 2, 3, seed=0), DistMult.init(N, 2, 4, seed=0)):
        with torch.no_grad():
            model.entity[7, 1] = value
        for loss in (losses.nssa, losses.margin, losses.logistic):
            with pytest.raises(ValueError, match=r"(candidates|table): row 7 holds a NaN"):
                loss(model, [(0, 0, 1), (1, 1, 0)], negatives)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(INTERPRETED, reason="it is that run")
def test_the_kernels_of_triton_interpreted():
    run_interpreted("", __file__)
