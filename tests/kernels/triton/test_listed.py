"""The Triton backend serves candidates that each query names; see test_rank.py for where."""

import pytest
import torch

from support.interpreted import run_interpreted

pytest.importorskip("triton")

from kgfast.kernels.triton.device.canonical import score_survivors
from kgfast.kernels.triton.host import launch
from support.flat import canonical_scores, triton
from support.lists import expected_best, expected_counts, random_lists
from support.problems import make_problem, no_known, rscf_problem
from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, on_gpu


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
def test_in_the_interpreter() -> None:
    run_interpreted(__file__, "TestLists")


@pytest.mark.skipif(CAN_RUN, reason="the kernel itself runs here")
@pytest.mark.parametrize("seed", [1, 4, 6])
def test_what_is_launched_scores_the_pairs(seed, monkeypatch) -> None:
    """Without the kernel, which the tests of topk run: who is asked for, and what is made of it."""
    problem = make_problem(seed, nonfinite=True)
    options = {name: it for name, it in problem.kwargs.items() if name in ("bias", "nan_worst")}

    def scored(kernel, grid, args, **_) -> None:
        assert kernel is score_survivors
        views, asked = args["views"], args["survivors"]
        rows, ids = asked.order[asked.pairs >> 32], asked.pairs & 0xFFFFFFFF
        assert grid == (-(-len(rows) // 32),)
        assert args["count"] == len(rows)
        bias = None if views.bias is None else views.bias.ptr[ids]
        pairs = views.queries.ptr[rows], views.table.ptr[ids]
        asked.scores.copy_(canonical_scores(*pairs, problem.args[5], bias))

    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(launch, "launch", scored)
    TestLists.compare(problem.args, options, seed)


def moved(values: tuple) -> list:
    """On the device; views keep their strides there."""
    return [it.to(DEVICE) if isinstance(it, torch.Tensor) else it for it in values]


@on_gpu
class TestLists:
    __test__ = CAN_RUN

    @pytest.mark.parametrize(("seed", "nonfinite"), [(1, False), (4, True), (6, False)])
    def test_problems(self, seed, nonfinite) -> None:
        problem = make_problem(seed, nonfinite)
        args = (problem.args[0][:4], problem.args[1][:40], problem.args[2][:4] % 40)
        args = (args[0], args[1], args[2] % len(args[1]), *self.known(args), problem.args[5])
        self.compare(args, {"nan_worst": nonfinite}, seed)

    def test_an_rscf_score(self) -> None:
        args, options = rscf_problem("rscf_rotate", 3)
        options.pop("candidate_ids", None)
        self.compare(args, options, 3)

    def test_what_is_not_finite_is_named(self) -> None:
        table = torch.zeros(6, 4)
        table[4, 1] = torch.inf
        args = (table[:2], table, torch.tensor([0, 1]), *no_known(2))
        lists = random_lists(2, 4, 0)
        triton.list_counts(*moved((*args, "l1")), lists=type(lists)(*moved(lists)))
        lists = lists._replace(indices=lists.indices + 1)
        with pytest.raises(ValueError, match="candidates: row 4 holds a NaN or an infinity"):
            triton.list_counts(*moved((*args, "l1")), lists=type(lists)(*moved(lists)))

    @staticmethod
    def known(args: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(args[0])
        generator = torch.Generator().manual_seed(count)
        ids = torch.randint(len(args[1]), (2 * count,), generator=generator)
        return 2 * torch.arange(count + 1), ids

    @staticmethod
    def compare(args: tuple, options: dict, seed: int) -> None:
        queries, table, targets, *known, score = args
        lists = random_lists(len(queries), len(table), seed, targets)
        there = {name: moved((value,))[0] for name, value in options.items()}
        there["lists"] = type(lists)(*moved(lists))
        counts = triton.list_counts(*moved(args), **there)
        expected = expected_counts(args, lists, **options)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(counts, expected, strict=True))
        best_args = (queries, table, 3, *known, score)
        scores, ids = triton.list_topk(*moved(best_args), **there)
        best = expected_best(best_args, lists, **options)
        assert torch.equal(ids.cpu(), best[1])
        assert torch.equal(scores.cpu().nan_to_num(nan=7.0), best[0].nan_to_num(nan=7.0))
