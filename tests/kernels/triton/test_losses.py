"""Losses over all candidates of the Triton backend, against the reference in float64.

Without a GPU they run interpreted, by ``tests/kernels/test_interpreted.py``.
"""

import pytest
import torch
from torch import Tensor

from kgfast.kernels.labels import Labels, LossChecks, LossNeed
from kgfast.kernels.scores import get_score
from support.flat import operands_of, reference, triton
from support.interpreter import shuffled_programs

pytest.importorskip("triton")

from support.engines import DEVICE, INTERPRETED, on_triton
from support.triton_scores import assert_close, exact, operands, rows

LOSS_SCORES = [
    "dot",  # on tensor cores
    "rotate",
    pytest.param("l2", marks=pytest.mark.slow),  # a root
    pytest.param("rscf_l1", marks=pytest.mark.slow),
]


def loss_problem(score: str, dtype: torch.dtype = torch.float32) -> tuple:
    """Queries of two blocks, a table of two tiles, a bias, and labels that occur twice."""
    q, c = operands(score, 17, 70, 3, dtype)
    facts = get_score(score)
    if facts.is_rscf:
        q = torch.cat([q, 1 + 0.1 * rows("l1", 17, q.shape[1], 5)], 1)
    rng = torch.Generator().manual_seed(6)
    lengths = torch.randint(1, 4, (17,), generator=rng)
    lengths[3] = 9  # of six
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(70, (int(indptr[-1]),), generator=rng)
    first = int(indptr[3])
    indices[first : first + 9] = torch.tensor([64, 0, 63, 69, 0, 5, 64, 0, 2])
    return q, c, rows("l1", 70, 1, 3)[:, 0], indptr.to(DEVICE), indices.to(DEVICE)


WRONG_WITH_A_MASK = {  # of a table, its bias, the targets
    "a label of all candidates": lambda c, bias, targets: None,
    "a target": lambda c, bias, targets: targets[5:6].fill_(3),
    "a NaN among biases": lambda c, bias, targets: bias[66:67].fill_(torch.nan),
    "an infinity among biases": lambda c, bias, targets: bias[66:67].fill_(torch.inf),
    "a NaN that is left out": lambda c, bias, targets: c[7].fill_(torch.nan),
    "an infinity that is left out": lambda c, bias, targets: c[7].fill_(torch.inf),
}


@on_triton
class TestLosses:
    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch) -> None:
        """Two blocks of queries, chunks of one tile, sums that are added up on the way."""
        from kgfast.kernels.triton import loss_tiles, losses

        monkeypatch.setattr(loss_tiles, "CHUNK_BYTES", 4 * 17 * 70)
        monkeypatch.setattr(loss_tiles, "QUERY_BYTES", 0)
        monkeypatch.setattr(losses, "SUM_BYTES", 4 * 3 * 17)

    @pytest.mark.parametrize("score", LOSS_SCORES)
    def test_bce(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        labels = 0.9, 0.01, score
        index = indptr.cpu(), indices.cpu()
        grad = rows("l1", 17, 1, 4)[:, 0]
        row_losses, linear = triton.bce(q, c, bias, indptr, indices, *labels)
        assert row_losses.dtype == torch.float32
        inputs = exact(q), exact(c), exact(bias)
        expected = reference.bce(*inputs, *index, *labels)
        assert_close(row_losses, expected[0])
        assert_close(linear, expected[1])
        actual = triton.bce_backward(grad, q, c, bias, indptr, indices, *labels)
        expected = reference.bce_backward(exact(grad), *inputs, *index, *labels)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)

    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    def test_a_total_has_the_bits_of_its_parts(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        labels = indptr, indices, 0.9, 0.01, score
        total, _, gradients = triton.bce_total(q, c, bias, *labels, divisor=1.0)
        assert torch.equal(total, triton.bce(q, c, bias, *labels)[0].sum())
        ones = torch.ones(17, device=DEVICE)
        parts = triton.bce_backward(ones, q, c, bias, *labels)
        assert all(torch.equal(x, y) for x, y in zip(gradients, parts, strict=True))
        halved, _, of_half = triton.bce_total(q, c, bias, *labels, divisor=2.0)
        assert torch.equal(2 * halved, total)
        assert all(torch.equal(2 * x, y) for x, y in zip(of_half, parts, strict=True))

    @pytest.mark.parametrize("score", LOSS_SCORES)
    def test_cross_entropy(self, score) -> None:
        q, c, bias, _, indices = loss_problem(score, torch.bfloat16)
        targets, grad = indices[-17:], rows("l1", 17, 1, 4)[:, 0]
        actual = triton.cross_entropy(q, c, bias, targets, 0.1, score)
        inputs = exact(q), exact(c), exact(bias), targets.cpu(), 0.1, score
        expected = reference.cross_entropy(*inputs)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)
        gradients = triton.cross_entropy_backward(grad, actual[1], q, c, bias, targets, 0.1, score)
        references = reference.cross_entropy_backward(exact(grad), expected[1], *inputs)
        assert gradients[1].dtype == torch.bfloat16
        for x, y, rel in zip(gradients, references, (1e-5, 8e-3, 1e-5), strict=True):
            assert_close(x, y, rel)

    @pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    def test_losses_in_any_order_of_programs(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        targets, grad = indices[-17:], rows("l1", 17, 1, 4)[:, 0]

        def everything() -> list[Tensor]:
            total = triton.bce_total(q, c, bias, indptr, indices, 0.9, 0.01, score, divisor=3.0)
            softmax = triton.cross_entropy(q, c, bias, targets, 0.1, score)
            made = softmax[1], q, c, bias, targets, 0.1, score
            back = triton.cross_entropy_backward(grad, *made)
            return [total[0], total[1], *total[2], *softmax, *back]

        made = everything()
        with shuffled_programs(7):
            again = everything()
        assert all(torch.equal(x, y) for x, y in zip(made, again, strict=True))

    @pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
    def test_small_and_large_scores_keep_their_digits(self, shift) -> None:
        """A softplus of 1e-13 is no zero, a sigmoid no one."""
        q, c, _, indptr, indices = loss_problem("dot")
        bias = torch.full((1,), shift, device=DEVICE)
        labels = indptr, indices, 0.0 if shift < 0 else 1.0, 0.0, "dot"
        given = exact(q), exact(c), exact(bias), indptr.cpu(), indices.cpu(), *labels[2:]
        assert_close(triton.bce(q, c, bias, *labels)[0], reference.bce(*given)[0])
        ones = torch.ones(17, device=DEVICE)
        expected = reference.bce_backward(exact(ones), *given)
        for x, y in zip(triton.bce_backward(ones, q, c, bias, *labels), expected, strict=True):
            assert_close(x, y)

    def test_a_mask_leaves_candidates_out(self) -> None:
        """Whole tiles of them, too."""
        q, c, bias, *_ = loss_problem("rotate")
        bias[:64] = -torch.inf
        targets = 65 + torch.arange(17, device=DEVICE) % 5
        inputs = exact(q), exact(c), exact(bias)
        labels = torch.arange(18, device=DEVICE), targets, 1.0, 0.0, "rotate"
        actual = triton.bce_backward(torch.ones(17, device=DEVICE), q, c, bias, *labels)
        index = labels[0].cpu(), targets.cpu(), *labels[2:]
        expected = reference.bce_backward(torch.ones(17).double(), *inputs, *index)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)
        assert not actual[1][:64].any()
        row_losses, lse, _ = triton.cross_entropy(q, c, bias, targets, 0.0, "rotate")
        expected = reference.cross_entropy(*inputs, targets.cpu(), 0.0, "rotate")
        assert_close(row_losses, expected[0])
        assert_close(lse, expected[1])

    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("wrong", [None, *WRONG_WITH_A_MASK])
    def test_the_host_looks_closer_for_what_is_wrong_alone(self, score, wrong) -> None:
        """A mask is not: of a NaN beside it, also in a row that it leaves out, the host hears."""
        q, c, bias, *_ = loss_problem(score)
        bias[:64] = -torch.inf
        targets = 65 + torch.arange(17, device=DEVICE) % 5
        if wrong is not None:
            WRONG_WITH_A_MASK[wrong](c, bias, targets)
        every = 0.1 if wrong == "a label of all candidates" else 0.0
        labels = Labels(torch.arange(18, device=DEVICE), targets, 1.0, every)
        looked: list[str] = []
        checks = LossChecks(lambda: looked.append("labels"), lambda sums: looked.append("scores"))
        problem, backend = operands_of(q, c, score, bias), triton.backend.losses
        need = LossNeed(queries=True, table=True, bias=True)
        for look in (
            lambda: backend.bce(problem, labels, checks),
            lambda: backend.bce_total(problem, labels, 2.0, need, checks),
            lambda: backend.cross_entropy(problem, targets, every, checks),
        ):
            looked.clear()
            look()
            assert looked == ([] if wrong is None else ["labels", "scores"])

    def test_products_of_any_strides(self) -> None:
        q = rows("l1", 9, 6, 0)[::3, 1:]  # misaligned
        c = rows("l1", 5, 31, 1).T  # columns
        targets = torch.tensor([3, 30, 0], device=DEVICE)
        given = exact(q), exact(c), None, targets.cpu(), 0.1, "dot"
        actual = triton.cross_entropy(q, c, None, targets, 0.1, "dot")
        expected = reference.cross_entropy(*given)
        assert_close(actual[0], expected[0])
        grad = rows("l1", 3, 1, 4)[:, 0]
        need = True, True, False
        made = actual[1], q, c, None, targets, 0.1, "dot", need
        of_reference = reference.cross_entropy_backward(exact(grad), expected[1], *given, need)
        for x, y in zip(triton.cross_entropy_backward(grad, *made), of_reference, strict=True):
            assert_close(x, y)

    @pytest.mark.parametrize("score", ["dot", "l1"])
    @pytest.mark.parametrize("wanted", [0, 1, 2])
    def test_only_what_is_needed(self, score, wanted) -> None:
        q, c, bias, _, indices = loss_problem(score)
        targets, grad = indices[-17:], torch.ones(17, device=DEVICE)
        _, lse, _ = triton.cross_entropy(q, c, bias, targets, 0.0, score)
        made = grad, lse, q, c, bias, targets, 0.0, score
        need = [i == wanted for i in range(3)]
        actual = triton.cross_entropy_backward(*made, need)
        assert [part is not None for part in actual] == need
        assert_close(actual[wanted], triton.cross_entropy_backward(*made)[wanted])

    @pytest.mark.parametrize(("queries", "others"), [(0, 3), (0, 0)])
    def test_no_pairs(self, queries, others) -> None:
        q, c = rows("rotate", queries, 2, 0), rows("rotate", others, 2, 1)
        indptr = torch.zeros(queries + 1, dtype=torch.int64, device=DEVICE)
        labels = indptr, indptr[:0], 1.0, 0.0, "rotate"
        total, linear, gradients = triton.bce_total(q, c, None, *labels, divisor=2.0)
        assert float(total) == 0
        assert linear.shape == (0,)
        for made, like in zip(gradients, (q, c, c[:, 0]), strict=True):
            assert torch.equal(made, torch.zeros_like(like))
        assert triton.cross_entropy(q, c, None, indptr[:0], 0.0, "rotate")[0].shape == (0,)

    @pytest.mark.parametrize("factor", [1.0, -2.5])
    def test_gradients_are_scaled_in_place(self, factor) -> None:
        values = [rows("l1", 70, 91, 0), rows("l1", 0, 3, 1), rows("l1", 3, 1, 2)]
        given = [it.clone() for it in values]
        triton.backend.losses.scale(values, torch.tensor(factor, device=DEVICE))
        assert all(torch.equal(x, factor * y) for x, y in zip(values, given, strict=True))
