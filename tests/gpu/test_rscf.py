"""The filtering scores and nested crops on a real GPU."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels.scores import get_score
from support.flat import reference
from support.problems import SCORES, no_known, rscf_problem

FILTERED = ("rscf_rotate", "rscf_l1", "rscf_l2")


def moved(values):
    return [it.cuda() if isinstance(it, torch.Tensor) else it for it in values]


def moved_options(options):
    return {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@pytest.mark.parametrize("score", FILTERED)
@pytest.mark.parametrize("nonfinite", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_the_reference_on_the_cpu(score, seed, nonfinite):
    arguments, options = rscf_problem(score, seed, nonfinite=nonfinite)
    expected = reference.rank_counts(*arguments, **options)
    counted = ops.rank_counts(*moved(arguments), **moved_options(options))
    for a, b in zip(expected, counted, strict=True):
        assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("score", FILTERED)
@pytest.mark.parametrize("seed", range(8))
def test_the_best_equal_the_reference_on_the_cpu(score, seed):
    (queries, table, _, *known, _), options = rscf_problem(score, seed)
    expected = reference.topk(queries, table, 4, *known, score, **options)
    found = ops.topk(*moved((queries, table, 4, *known)), score, **moved_options(options))
    assert torch.equal(found[1].cpu(), expected[1])
    assert torch.equal(found[0].cpu().nan_to_num(7.0), expected[0].nan_to_num(7.0))


def operands(score, rows, batch, dim, reach, has_factor=True):
    generator = torch.Generator().manual_seed(0)
    planes = get_score(score).planes
    table = torch.randn(rows, planes * dim, generator=generator)
    factor = 1 + 0.2 * torch.randn(rows, dim, generator=generator)
    queries = torch.randn(batch, planes * dim, generator=generator)
    scale = 1 + 0.1 * torch.randn(batch, planes * dim, generator=generator)
    move = reach * (2 * torch.rand(batch, dim, generator=generator) - 1)
    parts = [queries, scale, move] if has_factor else [queries, scale]
    return torch.cat(parts, 1), table, factor if has_factor else None


@pytest.mark.parametrize("score", FILTERED)
@pytest.mark.parametrize(("reach", "has_factor"), [(3.0, True), (300.0, True), (0.0, False)])
def test_a_large_table(score, reach, has_factor):
    """Thousands of candidates in large tiles; near and far angles."""
    queries, table, factor = operands(score, 3_001, 300, 96, reach, has_factor)
    arguments = queries, table, torch.arange(300), *no_known(300), score
    expected = reference.rank_counts(*arguments, factor=factor)
    counted = ops.rank_counts(*moved(arguments), **moved_options({"factor": factor}))
    for a, b in zip(expected, counted, strict=True):
        assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("score", FILTERED)
@pytest.mark.parametrize("reach", [3.0, 1000.0])
@pytest.mark.parametrize("dims", [None, [24, 96]])
def test_scores_and_gradients(score, reach, dims):
    queries, table, factor = operands(score, 700, 40, 96, reach)
    index = torch.randint(700, (40, 65), generator=torch.Generator().manual_seed(1))
    known = queries.double(), table.double()
    for kind, extra in (("pairwise", ()), ("indexed", (index,))):
        leaves = [it.cuda().requires_grad_() for it in (queries, table, factor)]
        scores = getattr(ops, f"{kind}_scores")(
            *leaves[:2], *moved(extra), score, factor=leaves[2], dims=dims
        )
        expected = getattr(reference, f"{kind}_scores")(
            *known, *extra, score, None, factor.double(), dims
        )
        assert relative(scores, expected) <= 1e-5
        grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
        found = torch.autograd.grad(scores, leaves, grad.cuda(), retain_graph=True)
        again = torch.autograd.grad(scores, leaves, grad.cuda())
        wanted = getattr(reference, f"{kind}_backward")(
            grad.double(), *known, *extra, score, factor.double(), dims
        )
        if kind == "indexed":
            ids, rows = wanted[1]
            of_table = torch.zeros_like(table).double().index_copy(0, ids, rows)
            of_factor = torch.zeros_like(factor).double().index_copy(0, ids, wanted[2])
            wanted = wanted[0], of_table, of_factor
        for a, b, c in zip(found, wanted, again, strict=True):
            assert relative(a, b) <= 1e-5
            assert torch.equal(a, c)


def relative(found, expected):
    error = (found.detach().double().cpu() - expected).abs().max()
    return float(error / expected.abs().max())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("batch", [5, 300])
def test_nested_crops_equal_each_alone(score, batch):
    generator = torch.Generator("cuda").manual_seed(0)
    planes = get_score(score).planes
    table = torch.randn(9_001, 512 * planes, generator=generator, device="cuda")
    targets = torch.arange(batch, device="cuda")
    noise = torch.randn(batch, 512 * planes, generator=generator, device="cuda")
    queries, dims = table[targets] + 0.5 * noise, [128, 512, 100, 256]
    arguments = queries, table, targets, *moved(no_known(batch)), score
    nested = torch.stack(ops.rank_counts(*arguments, dims=dims))
    for place, dim in enumerate(dims):
        alone = torch.stack(ops.rank_counts(*arguments, dims=[dim]))
        assert torch.equal(nested[:, place], alone[:, 0])


@pytest.mark.parametrize("batch", [1, 128, 4096])
@pytest.mark.parametrize(("score", "dims"), [("rotate", [128, 256, 512]), ("rscf_rotate", None)])
def test_peak_memory_beyond_the_inputs(batch, score, dims):
    planes = get_score(score).query_planes(score != "rotate")
    table, queries = torch.randn(40_943, 1024).cuda(), torch.randn(batch, 512 * planes).cuda()
    factor = None if score == "rotate" else 1 + 0.1 * torch.randn(40_943, 512).cuda()
    arguments = queries, table, torch.arange(batch).cuda(), *moved(no_known(batch)), score
    ops.rank_counts(*arguments, dims=dims, factor=factor)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ops.rank_counts(*arguments, dims=dims, factor=factor)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 64 << 20


@pytest.mark.skipif(torch.version.hip is not None, reason="NVIDIA's product in two parts")
def test_products_in_two_parts_are_exact_on_the_gpu():
    """An angle of a thousand radians, whose float32 product alone errs by 3e-5."""
    queries, table, factor = operands("rscf_rotate", 64, 4, 1, 2.0**18)
    factor = 1 + 2.0**-8 * factor
    found = ops.pairwise_scores(*moved((queries, table)), "rscf_rotate", factor=factor.cuda())
    expected = reference.pairwise_scores(
        queries.double(), table.double(), "rscf_rotate", None, factor.double()
    )
    assert relative(found, expected) <= 1e-5
