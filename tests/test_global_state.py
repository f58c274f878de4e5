"""Global states of a process change no result: dtype, device, autocast."""

import functools
import os

import pytest
import torch
from torch import Tensor

import kgfast
from kgfast import ComplEx, KnownTriples, RotatE, TransE, losses, ops
from kgfast.extras.heads import StreamedHead
from kgfast.kernels import cpu
from kgfast.kernels.backend import AdagradStep, AdamStep
from support.interpreted import run_interpreted
from support.sampled import threads
from support.small_runs import trainer_of
from support.states import state as state_of

B, N, K, WIDTH = 5, 40, 6, 8


@functools.cache  # the first call is made in a plain process: these are no results
def _numbers(shape, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype)


def make(*shape, seed=0, dtype=torch.float32):
    return _numbers(shape, seed, dtype).clone()


def ints(shape, high=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, shape, generator=generator, dtype=torch.int64, device="cpu")


INDPTR, INDICES = ints((B + 1,)) * 0, ints((2 * B,), seed=1)
INDPTR += 2 * torch.arange(B + 1, dtype=torch.int64, device="cpu")
TARGETS, INDEX, TRIPLES = ints((B,)), ints((B, K), seed=2), ints((9, 3), 4, seed=3)


def graded(function, *tensors):
    """Return the result of a function, and its gradients."""
    leaves = [it if it is None else it.clone().requires_grad_() for it in tensors]
    result = function(*leaves)
    if not result.requires_grad:
        return [result]
    wanted = [it for it in leaves if it is not None]
    weights = make(*result.shape, seed=9, dtype=result.dtype)
    found = torch.autograd.grad(result, wanted, weights)
    return [result.detach(), *(it.to_dense() for it in found)]


def all_scores():
    """Rank counts, top-k, pairwise, indexed of every kind of score."""
    found: list[Tensor] = []
    queries, table, bias = make(B, WIDTH), make(N, WIDTH, seed=4), make(N, seed=5)
    for score in ("dot", "l2", "rotate"):
        for dims in (None, [2, 4]):
            given = {"bias": bias, "dims": dims}
            known = INDPTR, INDICES
            found += ops.rank_counts(queries, table, TARGETS, *known, score, **given)
            found += ops.topk(queries, table, 3, *known, score, **given)
            found += ops.topk(queries, table, 3, score=score, candidate_ids=INDICES.unique())

            def pairwise(q, t, b, score=score, dims=dims):
                return ops.pairwise_scores(q, t, score, bias=b, dims=dims)

            def indexed(q, t, b, score=score, dims=dims):
                return ops.indexed_scores(q, t, INDEX, score, bias=b, dims=dims)

            found += graded(pairwise, queries, table, bias)
            found += graded(indexed, queries, table, bias)
    return found


def filtered_scores():
    """Return the scores of filters, with a factor."""
    queries, table, factor = make(B, 5 * 4), make(N, 8, seed=6), make(N, 4, seed=7)
    counts = ops.rank_counts(queries, table, TARGETS, INDPTR, INDICES, "rscf_rotate", factor=factor)

    def pairwise(q, t, f):
        return ops.pairwise_scores(q, t, "rscf_rotate", factor=f)

    def indexed(q, t, f):
        return ops.indexed_scores(q, t, INDEX, "rscf_rotate", factor=f, sparse=True)

    return [
        *counts,
        *graded(pairwise, queries, table, factor),
        *graded(indexed, queries, table, factor),
    ]


def row_losses():
    """Return the losses over all candidates."""
    found: list[Tensor] = []
    table, bias = make(N, WIDTH, seed=4), make(N, seed=5)
    for score in ("dot", "rotate"):

        def bce(q, t, b, score=score):
            return ops.bce(q, t, b, INDPTR, INDICES, 0.9, 0.01, score)

        def total(q, t, b, score=score):
            return ops.bce(q, t, b, INDPTR, INDICES, 0.9, 0.01, score, divisor=7.0)

        def entropy(q, t, b, score=score):
            return ops.cross_entropy(q, t, b, TARGETS, 0.1, score)

        def mean(q, t, b, score=score):
            return ops.cross_entropy(q, t, b, TARGETS, 0.1, score, divisor=B)

        for operator in (bce, total, entropy, mean):
            found += graded(operator, make(B, WIDTH), table, bias)
    return found


def row_updates():
    """Make steps of both row-wise optimizers."""
    if ops.backend_for(torch.device("cpu")) != "cpu":
        return []
    tables = [make(N, 4, seed=seed).abs() for seed in range(3)]
    step = AdamStep(0.1, (0.9, 0.999), 1e-8, 0.1, 3)
    ops.update_rows(tables, torch.unique(INDICES), make(len(INDICES.unique()), 4), step)
    *others, gradient = (make(N, 4, seed=seed).abs() for seed in range(3))
    ops.update_rows(others, None, gradient, AdagradStep(0.1, 1e-10, 0.1))
    return [*tables, *others]


def sampled_losses():
    """Losses of models, and their formulas."""
    found: list[Tensor] = []
    positive, negative = make(B), make(B, K, seed=8)
    found += graded(losses.NSSALoss(alpha=0.5).of_scores, positive, negative)
    for model in (RotatE.init(6, 4, 3, seed=0), TransE.init(6, 4, 3, seed=1)):
        for loss in (losses.nssa, losses.margin, losses.logistic):
            value = loss(model, TRIPLES, ints((9, K), 6))
            found.append(value.detach())
            if value.requires_grad:
                found += torch.autograd.grad(value, [model.entity, model.relation])
        heads, relations, tails = TRIPLES.T
        found.append(losses.bce(model, TRIPLES, label_smoothing=0.1).detach())
        found.append(losses.cross_entropy(model, (heads, relations), tails).detach())
        found.append(losses.relation_logits(model, heads, tails).detach())
        found.append(losses.regularizers.l2(model, TRIPLES).detach())
    return found


def rankings():
    """rank() and topk(), their metrics and groups."""
    found: list[Tensor] = []
    known = KnownTriples(TRIPLES)
    for model in (RotatE.init(6, 4, 4, seed=0), ComplEx.init(6, 4, 4, seed=1)):
        ranks = kgfast.rank(model, TRIPLES.tolist(), known=known, candidate_ids=range(5))
        found += [ranks.greater, ranks.equal, ranks.num_candidates, ranks.realistic]
        for group in ("relation", "cardinality", "frequency"):
            found += [it.greater for it in ranks.by(group).values()]
        metrics = list(ranks.metrics().values()) + list(ranks.raw.metrics().values())
        found.append(torch.tensor(metrics, dtype=torch.float64, device="cpu"))
        found += kgfast.rank(model, TRIPLES, known=known, dims=[2, 4])[2].greater
        top = kgfast.topk(model, heads=[0, 1], relations=[2, 3], k=3, known=known, pad=True)
        found += [top.ids, top.scores]
        above = kgfast.above(model, top.scores[:, 1], heads=[0, 1], relations=[2, 3], known=known)
        found += [above.indptr, above.ids, above.scores]
        index = kgfast.Index(model)
        found += kgfast.rank(model, TRIPLES, known=known, index=index).greater
    found += [kgfast.rank_rows(SMALL[2:] + 1, SMALL, [0], score="cosine").greater]
    many = torch.full((1, 1), 40_001, dtype=torch.int64, device="cpu")
    ranks = kgfast.Ranks(many, many, many * 3, ("tail",), many.expand(1, 3))
    return [*found, ranks.realistic]


def heads():
    """Losses, draws and the best of an output layer, of all outputs and of some."""
    weight = torch.nn.Parameter(make(N, WIDTH, seed=4))
    head = StreamedHead(N, WIDTH, weight=weight, sparse=True)
    hidden, found = make(B, WIDTH), []
    for ids in (None, torch.cat([TARGETS, INDICES]).unique()):
        found += [head.sample(hidden, 0.5, seed=3, candidate_ids=ids)]
        found += [head.sample(hidden, 2.0, 4, seed=3, candidate_ids=ids)]
        found += head.topk(hidden, 3, candidate_ids=ids)
        loss = head.loss(hidden, TARGETS, candidate_ids=ids, reduction="none")
        found += [loss.detach()]
    loss = head.sampled_loss(hidden, TARGETS, 9, seed=1)
    found.append(loss.detach())
    return found


def tables_of_all_dtypes():
    found: list[Tensor] = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        of_queries = torch.float64 if dtype == torch.float64 else torch.float32
        queries, table = make(B, WIDTH, dtype=of_queries), make(N, WIDTH, seed=4, dtype=dtype)
        found += ops.rank_counts(queries, table, TARGETS, INDPTR, INDICES, "rotate")
        found += ops.topk(queries, table, 2, score="l1")
        found += graded(lambda q, t: ops.pairwise_scores(q, t, "rotate"), queries, table)
    return found


WORK = {
    it.__name__: it
    for it in (
        *(all_scores, filtered_scores, row_losses, row_updates),
        *(sampled_losses, rankings, heads, tables_of_all_dtypes),
    )
}


SMALL = torch.tensor([[2.0**-140, 2.0**-140], [0.0, 2.0**-140], [1.0, 0.0]])
STATES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("float16", "bfloat16", "float64", "meta", "flush", "inference")},
    **{name: (name,) for name in ("autocast", "deterministic")},
    "everything": ("float64", "meta", "flush", "deterministic", "autocast"),
}
# Between kernels stands torch's own arithmetic, whose numbers are halves under autocast.
HALVED, HALVES = ("autocast", "everything"), 2e-2
OF_TORCH = ("sampled_losses", "rankings")
INTERPRETED = [("everything", it) for it in ("filtered_scores", "row_losses", "rankings")]


@pytest.fixture(scope="module")
def plain():
    """Return the results of every backend in a state that nobody touched."""
    return {}


def serve(backend):
    if backend == "cpu" and not cpu.is_available():
        pytest.skip("the extension is not built")
    if (backend == "triton") != (os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("Triton's kernels run where they are interpreted, and alone there")


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_results_are_those_of_a_plain_process(backend, name, work, plain):
    serve(backend)
    if backend == "reference" and name not in ("float64", "everything"):
        pytest.skip("two states are enough where it is slow")
    if backend == "triton" and (name, work) not in INTERPRETED:
        pytest.skip("a few are enough where it is slower still")
    with ops.use_backend(backend):
        if (backend, work) not in plain:
            plain[backend, work] = WORK[work]()
        with state_of(*STATES[name]):
            found = WORK[work]()
    wanted = plain[backend, work]
    if name == "inference":
        with torch.no_grad(), ops.use_backend(backend):
            wanted = WORK[work]()
    assert len(found) == len(wanted)
    tolerance = HALVES if name in HALVED and work in OF_TORCH else 0.0
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.device) == (want.dtype, want.device)
        if want.is_floating_point() and tolerance:
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_training_is_that_of_a_plain_process(dtype):
    """A whole run: sampling, optimizer, evaluation."""
    sections = {"train": {"steps": 4}}
    plain = trainer_of(**sections)
    result = plain.fit()
    with state_of(dtype):
        other = trainer_of(**sections)
        found = other.fit()
    assert found.test == result.test
    for one, two in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="it is that run")
def test_the_kernels_of_triton_interpreted():
    run_interpreted("", __file__)


def test_kernels_have_the_cores_within_a_block_alone():
    """A loop of a user leaves torch one thread, as the trainer does."""
    with threads(3):
        with kgfast.cores_for_kernels(torch.device("cpu")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with kgfast.cores_for_kernels(torch.device("cuda")):
            assert torch.get_num_threads() == 3
