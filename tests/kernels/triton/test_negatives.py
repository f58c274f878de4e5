"""Losses of sampled negatives on Triton: against float64, and what they launch and wait for.

Without a GPU they run interpreted, by ``tests/kernels/test_interpreted.py``.
"""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import kgfast
from kgfast import losses, ops
from kgfast.kernels.sampled import NegativeLoss, Sampled
from kgfast.kernels.scores import SCORES, get_score
from kgfast.ops.negatives import fusing_backend, negative_loss
from support import oracles
from support.flat import operands_of
from support.sampled import assert_close

pytest.importorskip("triton")
from support import aot
from support.engines import DEVICE, examples, on_triton
from support.interpreter import shuffled_programs
from support.triton_code import ARCHS, compiled

FORMULAS = ["nssa", "margin", "logistic"]
PARAMETERS = {"nssa": 0.7, "margin": 1.5, "logistic": 0.0}


class Problem:
    """A table, queries, and negatives of either kind."""

    def __init__(
        self, score="rotate", formula="nssa", *, pool=True, has_mask=False, batch=5, width=70, dim=9
    ) -> None:
        rng = torch.Generator().manual_seed(batch + width)
        facts, self.score, self.rows = get_score(score), score, width if pool else 30
        self.factor = None
        if facts.is_rscf:
            self.factor = torch.randn(self.rows, dim, generator=rng).to(DEVICE)
        shape = batch, dim * facts.query_planes(has_factor=facts.is_rscf)
        self.queries = torch.randn(shape, generator=rng).to(DEVICE)
        self.table = torch.randn(self.rows, dim * facts.planes, generator=rng).to(DEVICE)
        self.bias = torch.randn(self.rows, generator=rng).to(DEVICE)
        mask = None
        if has_mask:
            mask = (torch.rand(batch, width, generator=rng) < 0.6).to(DEVICE)
            mask[batch // 2] = False
        self.loss = NegativeLoss(formula, PARAMETERS[formula], mask)
        self.factors = torch.rand(batch, generator=rng).to(DEVICE)
        self.positive = torch.randn(batch, generator=rng).to(DEVICE)
        self.ids = None
        if not pool:
            self.ids = torch.randint(self.rows, (batch, 1 + width), generator=rng).to(DEVICE)
        self.grad = torch.rand(batch, generator=rng).to(DEVICE)

    def leaves(self, dtype=None):
        tensors = self.queries, self.table, self.bias, self.factor, self.positive
        return [
            None if it is None else it.detach().to(dtype or it.dtype, copy=True).requires_grad_()
            for it in tensors
        ]

    def reduced(self, reduction, *, has_weights=False):
        """Return this problem, whose rows become one loss."""
        weights = self.factors if has_weights else None
        self.loss = self.loss._replace(reduction=reduction, weights=weights)
        return self

    def made(self, **options):
        """Losses and gradients by the kernels."""
        queries, table, bias, factor, positive = leaves = self.leaves()
        bias = bias if self.ids is None else bias.detach()
        operands = operands_of(queries, table, self.score, bias, factor)
        with ops.use_backend("triton"):
            sampled = Sampled(positive)
            if self.ids is not None:
                sampled = Sampled(None, self.ids[:, 0], self.ids[:, 1:], **options)
            loss = negative_loss(operands, sampled, self.loss, "triton")
            return self._differentiated(loss, leaves)

    def expected(self, dtype=torch.float64):
        """Return the results of formulas: of reference scores, in float32 of dense torch's."""
        queries, table, bias, factor, positive = leaves = self.leaves(dtype)
        options = {"bias": bias if self.ids is None else bias.detach(), "factor": factor}
        if dtype == torch.float32:
            scores = self._dense(queries, table, options["bias"])
        elif self.ids is None:
            scores = ops.pairwise_scores(queries, table, self.score, **options)
        else:
            scores = ops.indexed_scores(queries, table, self.ids, self.score, **options)
        if self.ids is not None:
            positive, scores = scores[:, 0], scores[:, 1:]
        self.smallest = (self.loss.parameter - positive[:, None] + scores).abs().min()
        made = losses.LOSSES[self.loss.formula]
        options = dict.fromkeys(made.hyperparameters(), self.loss.parameter)
        loss = made(reduction=self.loss.reduction, **options)
        found = loss.of_scores(positive, scores, self.loss.weights, self.loss.mask)
        return self._differentiated(found, leaves)

    def _dense(self, queries, table, bias):
        rows, bias = (it if self.ids is None else it[self.ids] for it in (table, bias))
        return oracles.dense_scores(queries[:, None], rows, self.score, bias=bias)

    def _differentiated(self, loss, leaves):
        needed = [it for it in leaves if it is not None]
        grad = self.grad if loss.ndim else self.grad[0]
        gradients = torch.autograd.grad((loss * grad).sum(), needed, allow_unused=True)
        return [loss.detach(), *(it for it in gradients if it is not None)]


def check(problem: Problem) -> None:
    """Against float64, where no pair of a margin is near it."""
    exact = problem.expected()
    assume(problem.loss.formula != "margin" or float(problem.smallest) > 1e-4)
    dense = [None] * len(exact)
    if problem.factor is None:
        dense = [it.cpu() for it in problem.expected(torch.float32)]
    for found, wanted, dense32 in zip(problem.made(), exact, dense, strict=True):
        assert_close(found.cpu(), wanted.cpu(), dense32)


@on_triton
class TestNegatives:
    @pytest.mark.parametrize(
        ("score", "formula", "pool", "has_mask"),
        [
            ("rotate", "nssa", True, True),
            ("l2", "margin", True, False),
            ("dot", "logistic", True, True),
            ("rscf_rotate", "nssa", False, False),
            ("l1", "margin", False, True),
        ],
    )
    def test_rows_and_gradients(self, score, formula, pool, has_mask) -> None:
        check(Problem(score, formula, pool=pool, has_mask=has_mask, batch=4, width=17))

    @pytest.mark.parametrize(
        ("formula", "pool", "has_mask", "reduction", "has_weights"),
        [
            ("nssa", True, True, "mean", True),
            ("nssa", False, False, "mean", False),
            ("nssa", False, True, "none", True),
            ("nssa", True, False, "sum", True),
            ("margin", True, True, "mean", False),
            ("margin", False, False, "mean", False),
            ("logistic", False, True, "mean", False),
            ("logistic", True, False, "mean", False),
            ("logistic", True, True, "sum", False),
        ],
    )
    def test_rows_become_one_loss(self, formula, pool, has_mask, reduction, has_weights) -> None:
        """More rows than a program finishes are added in order."""
        problem = Problem("l1", formula, pool=pool, has_mask=has_mask, batch=37, width=5, dim=3)
        check(problem.reduced(reduction, has_weights=has_weights))

    @pytest.mark.parametrize("pool", [True, False])
    def test_weights_that_are_all_zero_make_a_mean_of_0(self, pool) -> None:
        problem = Problem(pool=pool)
        problem.factors.zero_()
        assert not any(it.any() for it in problem.reduced("mean", has_weights=True).made())

    @pytest.mark.parametrize("formula", FORMULAS)
    def test_a_mean_over_nothing_is_0(self, formula) -> None:
        problem = Problem("l1", formula, has_mask=True, batch=3, width=5).reduced("mean")
        problem.loss.mask.fill_(False)
        loss, *gradients = problem.made()
        assert torch.equal(loss, loss.new_zeros(())) == (formula == "margin")
        assert all(bool(it.isfinite().all()) for it in (loss, *gradients))
        assert not any(it.any() for it in gradients[:3])

    @pytest.mark.parametrize(
        ("formula", "pool"),
        [("nssa", False), ("margin", True), ("logistic", False), ("nssa", True)],
    )
    def test_more_negatives_than_a_program_reads_at_a_time(self, formula, pool) -> None:
        check(Problem("l1", formula, pool=pool, has_mask=True, batch=2, width=600, dim=2))

    @pytest.mark.slow
    @given(
        score=st.sampled_from(list(SCORES)),
        formula=st.sampled_from(FORMULAS),
        pool=st.booleans(),
        has_mask=st.booleans(),
        shape=st.sampled_from([(1, 1, 1), (5, 70, 9), (17, 130, 4), (3, 64, 65)]),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    )
    @examples(50)
    def test_any_rows_and_gradients(self, score, formula, pool, has_mask, shape, dtype) -> None:
        sizes = dict(zip(("batch", "width", "dim"), shape, strict=True))
        problem = Problem(score, formula, pool=pool, has_mask=has_mask, **sizes)
        problem.table = problem.table.to(dtype)
        check(problem)

    @pytest.mark.parametrize("pool", [True, False], ids=["pool", "lists"])
    def test_roots(self, pool) -> None:
        """Slopes are divided by the distance itself: gamma of a thousand times it takes no bits."""
        problem = Problem("l2", "logistic", pool=pool, width=9)
        problem.bias.fill_(100.0)
        problem.queries *= 1e-2
        problem.table *= 1e-2
        for found, wanted in zip(problem.made(), problem.expected(), strict=True):
            assert_close(found.cpu(), wanted.cpu())

    @pytest.mark.parametrize(
        ("score", "pool"),
        [("rotate", True), ("dot", True), pytest.param("rotate", False, marks=pytest.mark.slow)],
    )
    def test_bits_depend_on_nothing_else(self, pool, score) -> None:
        problem = Problem(score, pool=pool, has_mask=True, batch=9 if pool else 3)
        alone = problem.made()
        assert all(torch.equal(a, b) for a, b in zip(problem.made(), alone, strict=True))
        with shuffled_programs(0):
            again = problem.made()
        assert all(torch.equal(a, b) for a, b in zip(again, alone, strict=True))

    @pytest.mark.parametrize("pool", [True, False], ids=["pool", "lists"])
    def test_a_candidate_that_a_bias_leaves_out_costs_no_closer_look(
        self, pool, monkeypatch
    ) -> None:
        problem = Problem("l1", "logistic", pool=pool, width=9)
        problem.bias[problem.rows - 1] = -torch.inf
        monkeypatch.setattr(
            "kgfast.ops.negatives.name_not_finite", lambda *_: pytest.fail("looked")
        )
        for reduction in ("none", "mean"):
            for found in problem.reduced(reduction).made():
                assert bool((found.isfinite() | (found == -torch.inf)).all())

    @pytest.mark.parametrize(
        ("score", "pool"),
        [("rotate", True), ("rotate", False), pytest.param("dot", True, marks=pytest.mark.slow)],
    )
    def test_what_is_not_finite_is_named(self, pool, score) -> None:
        name = "candidates" if pool else "table"
        for bad in (torch.nan, torch.inf):
            problem = Problem(score, pool=pool, width=9)
            problem.table[7, 2] = bad
            with pytest.raises(ValueError, match=f"^{name}: row 7 holds"):
                problem.made()
        problem = Problem(score, pool=pool, width=9)
        problem.bias[3] = torch.inf
        with pytest.raises(ValueError, match=r"^bias: row 3 holds"):
            problem.made()
        problem = Problem(score, pool=pool, width=9)
        problem.queries[4, 1] = torch.nan
        with pytest.raises(ValueError, match=r"^queries: row 4 holds"):
            problem.made()

    def test_ids_out_of_range_are_named_and_never_read(self) -> None:
        for place, id in ((1, 30), (0, -1)):
            problem = Problem(pool=False, width=9)
            problem.ids[2, place] = id
            wrong = rf"^index\[2, {place}\] must be in 0 .. 29; got {id}"
            with pytest.raises(ValueError, match=wrong):
                problem.made()
            with kgfast.unchecked():
                problem.made()

    def test_a_sparse_gradient_holds_the_rows_that_are_named(self) -> None:
        problem = Problem(pool=False, width=9)
        dense, sparse = problem.made(), problem.made(sparse=True)
        ids = sparse[2].coalesce().indices()[0]
        assert torch.equal(ids, problem.ids.unique())
        assert torch.equal(sparse[2].to_dense(), dense[2])

    def test_what_is_fused(self) -> None:
        queries, bias = torch.zeros(3, 4, device=DEVICE), torch.zeros(9, device=DEVICE)
        lists, pool = torch.zeros(3, 2).long(), torch.zeros(2).long()
        leaf, plain = bias.clone().requires_grad_(), NegativeLoss("nssa")
        cases = [  # queries, their biases, negatives, weights, and whether a kernel takes them
            (queries, bias, lists, None, True),
            (queries, leaf, pool, None, True),
            (queries, leaf, lists, None, False),
            (queries.double(), None, pool, None, False),
            (queries[:0], None, pool, None, False),
            (queries, None, pool[:0], None, False),
            (queries, None, pool, bias.half(), True),
            (queries, None, pool, leaf, False),
            (queries, None, pool, bias.double(), False),
        ]
        for *operands, weights, fuses in cases:
            with ops.use_backend("triton"):
                backend = fusing_backend(*operands, plain._replace(weights=weights))
            assert backend == ("triton" if fuses else None)


def test_an_equation_of_its_own_is_not_fused_as_that_of_its_base() -> None:
    class Own(losses.NSSALoss):
        def of_rows(self, positive, of_negatives):
            return of_negatives

    assert losses.NSSALoss.kernel == "nssa"
    assert Own.kernel is None


def recorded(arch, problem: Problem, dim: int = 100) -> list:
    """Return This project's own kernels, of a value and its gradients, as they are compiled."""
    from kgfast.kernels.operands import Need
    from kgfast.kernels.sampled import Sampled
    from kgfast.kernels.triton.negatives import FusedNegatives

    operands = operands_of(
        problem.queries, problem.table, problem.score, problem.bias, problem.factor
    )
    sampled = Sampled(problem.positive)
    if problem.ids is not None:
        sampled = Sampled(None, problem.ids[:, 0], problem.ids[:, 1:])
    need, kernels = Need(True, True, problem.factor is not None), FusedNegatives()
    with aot.recorded(arch if isinstance(arch, int) else 0) as launches:
        made = kernels.value(operands, sampled, problem.loss, check=None)
        grad, is_pool = problem.grad[0], problem.ids is None
        if not is_pool:  # the host reads ids
            made = made._replace(ids=problem.ids)
        kernels.gradients(operands, problem.loss, made, grad, need, bias=is_pool)
    own = "negative_rows", "negative_slopes", "gather_scores", "score_tiles"
    return [launch for launch in launches if launch.name in own]


CODE = [
    ("rotate", "nssa", True),
    ("rotate", "margin", True),
    ("rotate", "nssa", False),
    ("l2", "logistic", True),
    ("rscf_rotate", "margin", False),
    ("dot", "nssa", True),
    ("rscf_rotate", "nssa", True),
]


@compiled
@pytest.mark.parametrize(("batch", "width"), [(1, 9_000_000), (600_000, 2)])
def test_grids_have_as_many_programs_as_an_axis_takes(batch, width) -> None:
    for launch in recorded(90, Problem(pool=False, batch=batch, width=width, dim=1)):
        assert all(programs <= 65535 for programs in launch.grid[1:]), launch


@compiled
@pytest.mark.parametrize(
    ("arch", "case"),
    [pytest.param(90, CODE[0])]
    + [
        pytest.param(arch, case, marks=pytest.mark.slow)
        for arch in [*(it.values[0] for it in ARCHS), "gfx942"]
        for case in CODE
    ],
)
def test_what_is_added_to_a_sweep_costs_little_and_does_not_spill(arch, case) -> None:
    score, formula, pool = case
    sizes = {"batch": 512, "width": 1000, "dim": 100}
    problem = Problem(score, formula, pool=pool, has_mask=case is not CODE[0], **sizes)
    problem.reduced("mean", has_weights=formula == "nssa" and case is not CODE[0])
    for launch in recorded(arch, problem):
        code = aot.compile_for(launch, arch)
        assert code.stack == 0, launch.name
        if arch == "gfx942":
            continue
        # 168: three programs of four warps on a multiprocessor, as with 160
        assert code.registers <= (240 if launch.args.get("PRODUCT") else 168), launch.name
        if launch.name == "negative_slopes" and case == CODE[0]:
            assert code.operations.total() <= 62 * 8  # 8 pairs a thread
