"""Models against their equations, in plain complex arithmetic."""

import cmath
import itertools
import math

import pytest
import torch

from kgfast import CP, RESCAL, ComplEx, ConvE, DistMult, RotatE, TransE, rank
from support.flat import canonical_scores
from support.mistakes import each_of

N, R, D = 7, 3, 5


def tables(width, relation_width, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    entity = torch.randn(N, width, generator=generator, dtype=torch.float64).to(dtype)
    return entity, torch.randn(R, relation_width, generator=generator, dtype=torch.float64).to(
        dtype
    )


def complex_row(row, layout="halves"):
    values = row.tolist()
    if layout == "interleaved":
        return [complex(a, b) for a, b in zip(values[0::2], values[1::2], strict=True)]
    half = len(values) // 2
    return [complex(a, b) for a, b in zip(values[:half], values[half:], strict=True)]


def assert_scores(model, score_of, rel=1e-12):
    """Check every triple from both sides: ``score_of(side, h, r, t)`` is the equation."""
    for r, side in itertools.product(range(R), ("tail", "head")):
        queries = model.queries(torch.arange(N), torch.full((N,), r), side)
        candidates = model.candidates(side)
        scores = canonical_scores(
            queries[:, None], candidates.table, model.score, candidates.bias
        ).tolist()
        for a, n in itertools.product(range(N), repeat=2):
            h, t = (a, n) if side == "tail" else (n, a)
            assert scores[a][n] == pytest.approx(score_of(side, h, r, t), rel=rel)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("norm", ["modulus", "l2"])
@pytest.mark.parametrize("relation_format", ["raw", "phase", "complex"])
def test_rotate(layout, norm, relation_format):
    entity, relation = tables(2 * D, 2 * D if relation_format == "complex" else D)
    model = RotatE(
        entity, relation, gamma=6.0, relation_format=relation_format, norm=norm, layout=layout
    )

    def score(side, h, r, t):
        if relation_format == "complex":
            turn = complex_row(relation[r], layout)
        else:
            unit = math.pi / ((6.0 + 2.0) / D) if relation_format == "raw" else 1.0
            turn = [cmath.exp(1j * p * unit) for p in relation[r].tolist()]
        head, tail = complex_row(entity[h], layout), complex_row(entity[t], layout)
        if side == "head":
            head, tail, turn = tail, head, [z.conjugate() for z in turn]
        differences = [abs(a * z - b) for a, z, b in zip(head, turn, tail, strict=True)]
        if norm == "modulus":
            return -sum(differences)
        return -math.sqrt(sum(x * x for x in differences))

    assert_scores(model, score)


def product(*rows):
    return math.fsum(torch.stack(rows).prod(0).real.tolist())


def halves(row):
    return torch.complex(*row.chunk(2))


def pairs(row):
    return torch.view_as_complex(row.view(-1, 2))


# Columns of entities and of relations, the model, and its equation of three rows.
EQUATIONS = {
    "transe l1": (D, D, TransE, lambda h, r, t: -(h + r - t).abs().sum()),
    "transe l2": (
        *(D, D, lambda *it: TransE(*it, norm="l2")),
        lambda h, r, t: -(h + r - t).square().sum().sqrt(),
    ),
    "distmult": (D, D, DistMult, product),
    "complex": (
        *(2 * D, 2 * D, ComplEx),
        lambda h, r, t: product(halves(h), halves(r), halves(t).conj()),
    ),
    "complex interleaved": (
        *(2 * D, 2 * D, lambda *it: ComplEx(*it, layout="interleaved")),
        lambda h, r, t: product(pairs(h), pairs(r), pairs(t).conj()),
    ),
    "cp": (2 * D, D, CP, lambda h, r, t: product(h[:D], r, t[D:])),
    "rescal": (D, D * D, RESCAL, lambda h, r, t: h @ r.view(D, D) @ t),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_scores_are_those_of_the_equation(name):
    width, of_relation, make, equation = EQUATIONS[name]
    entity, relation = tables(width, of_relation)
    assert_scores(
        make(entity, relation),
        lambda _, h, r, t: float(equation(entity[h], relation[r], entity[t])),
    )


@pytest.mark.parametrize(
    ("model", "dim", "trains"),
    [(RotatE, 600, True), (RotatE, 600, False), (CP, 24, False), (RESCAL, 24, False)],
)
@pytest.mark.parametrize("size", [3, 37])
def test_queries_of_few_and_of_many_are_the_same(model, dim, trains, size):
    model = model.init(300, 7, dim, seed=1)
    anchors, relations = torch.arange(300), torch.arange(300) % 7
    with torch.set_grad_enabled(trains):
        for side in ("tail", "head"):
            whole = model.queries(anchors, relations, side)
            parts = zip(anchors.split(size), relations.split(size), strict=True)
            assert torch.equal(whole, torch.cat([model.queries(*it, side) for it in parts]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_query_dtypes(dtype):
    entity, relation = tables(2 * D, D, dtype)
    queries = RotatE(entity, relation).queries(torch.arange(2), torch.arange(2), "head")
    assert queries.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def conve(**options):
    """Float64, with statistics and biases that are not those of a fresh model."""
    torch.manual_seed(3)
    entity, relation = tables(6, 6)
    model = ConvE(
        entity, torch.cat([relation, relation.flip(0)]), embedding_height=2, channels=3, **options
    )
    for module in model.modules():
        if hasattr(module, "running_mean"):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    torch.nn.init.normal_(model.bias)
    return model


@torch.no_grad()
def test_a_network_with_tables_in_half_precision_is_float32():
    model = conve().eval().float()
    expected = model.queries(torch.arange(2), torch.arange(2), "head")
    found = model.half().queries(torch.arange(2), torch.arange(2), "head")
    assert model.entity.dtype == torch.float16
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-2)
    assert rank(model, [(0, 0, 1)]).greater.shape == (1, 2)


def normalised(values, norm, channel):
    scale = norm.weight[channel] / (norm.running_var[channel] + norm.eps).sqrt()
    return (values - norm.running_mean[channel]) * scale + norm.bias[channel]


def conve_query(model, anchor, relation):
    """Dettmers et al. 2018, a pixel at a time."""
    image = torch.cat([model.entity[anchor].view(2, 3), model.relation[relation].view(2, 3)])
    image = normalised(image, model.image_norm, 0)
    features = []
    for channel in range(3):
        kernel, offset = model.convolution.weight[channel, 0], model.convolution.bias[channel]
        for i in range(2):
            pixel = (image[i : i + 3] * kernel).sum() + offset
            features.append(normalised(pixel, model.feature_norm, channel).relu())
    hidden = model.projection.weight @ torch.stack(features) + model.projection.bias
    return torch.stack([normalised(x, model.hidden_norm, i) for i, x in enumerate(hidden)]).relu()


@torch.no_grad()
def test_conve():
    model = conve().eval()

    def score(side, h, r, t):
        if side == "tail":
            return (conve_query(model, h, r) @ model.entity[t] + model.bias[t]).item()
        return (conve_query(model, t, R + r) @ model.entity[h] + model.bias[h]).item()

    assert_scores(model, score, rel=1e-9)


def test_conve_normalises_over_the_batch_in_training_only():
    model = conve(input_dropout=0.0, feature_dropout=0.0, hidden_dropout=0.0)
    asked = torch.arange(N), torch.zeros(N, dtype=torch.int64), "tail"
    evaluated = model.eval().queries(*asked)
    for one, wanted in zip(range(N), evaluated, strict=True):
        alone = model.queries(*(ids[one : one + 1] for ids in asked[:2]), "tail")
        torch.testing.assert_close(alone[0], wanted)
    before = model.hidden_norm.running_mean.clone()
    trained = model.train().queries(*asked)
    assert not torch.allclose(trained, evaluated)
    assert not torch.equal(model.hidden_norm.running_mean, before)
    alone = model.queries(*(it[:1] for it in asked[:2]), "tail")  # has no statistics
    assert bool(alone.isfinite().all())
    model.hidden_dropout.p = 0.5
    assert not torch.equal(model.queries(*asked), model.queries(*asked))
    assert torch.equal(model.eval().queries(*asked), model.queries(*asked))


TRAINED = [(RotatE, {"gamma": 6.0}), (RotatE, {"layout": "interleaved"})]
TRAINED += [(model, {}) for model in (TransE, DistMult, ComplEx, CP, RESCAL)]


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize(("kind", "options"), TRAINED)
def test_trained_queries_and_gradients_are_those_of_float64(kind, options, side):
    model, exact = (kind.init(N, R, D, seed=0, **options) for _ in range(2))
    exact.double()
    anchors, relations = torch.tensor([3, 1, 3, 0]), torch.tensor([2, 0, 2, 1])
    queries = model.queries(anchors, relations, side)
    with torch.no_grad():
        torch.testing.assert_close(
            queries, model.queries(anchors, relations, side), rtol=1e-5, atol=1e-6
        )
    weights = torch.randn(queries.shape, generator=torch.Generator().manual_seed(0))
    (queries * weights).sum().backward()
    (exact.queries(anchors, relations, side) * weights.double()).sum().backward()
    for ours, theirs in ((model.entity, exact.entity), (model.relation, exact.relation)):
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("model", [RotatE, TransE, DistMult, ComplEx, CP, RESCAL, ConvE])
def test_init_is_seeded_trainable_and_leaves_the_global_generator_alone(model):
    options = {"embedding_height": 2} if model is ConvE else {}
    dim, state = 8, torch.get_rng_state()
    first, second, other = (model.init(9, 2, dim, seed=seed, **options) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
        assert value.ndim < 2 or not torch.equal(value, other.state_dict()[name])
    assert all(parameter.requires_grad for parameter in first.parameters())
    assert (first.num_entities, first.num_relations, first.dim) == (9, 2, dim)
    model.init(9, 2, dim, **options)  # without a seed the global generator draws
    assert not torch.equal(torch.get_rng_state(), state)


def of_zeros(model, entity, relation, **options):
    """Return a call that makes a model of tables of zeros."""
    return lambda: model(torch.zeros(entity), torch.zeros(relation), **options)


def conve_of(dim, **options):
    return lambda: ConvE.init(3, 1, dim, **options)


BAD = {
    ValueError: {
        "even number": of_zeros(RotatE, (2, 3), (1, 1)),
        r"number of columns \(as a head": of_zeros(CP, (2, 3), (1, 1)),
        "relation must have 2 columns": of_zeros(RotatE, (2, 4), (1, 3)),
        r"relation must have 2 columns \(half as many as entities": of_zeros(CP, (2, 4), (1, 4)),
        "relation_format must be one of raw, phase, complex; got 'degrees'": of_zeros(
            RotatE, (2, 4), (1, 2), relation_format="degrees"
        ),
        "norm": of_zeros(TransE, (2, 4), (1, 4), norm="l3"),
        "layout must be one of halves, interleaved": of_zeros(
            ComplEx, (2, 4), (1, 4), layout="planes"
        ),
        "gamma must be finite": of_zeros(RotatE, (2, 4), (1, 2), gamma=math.nan),
        "entity is on cpu but relation on meta": lambda: DistMult(
            torch.zeros(2, 4), torch.zeros(1, 4, device="meta")
        ),
        "relation must have 16 columns": of_zeros(RESCAL, (2, 4), (1, 4)),
        "dims: RESCAL cannot be cropped": lambda: rank(
            RESCAL.init(3, 1, 4, seed=0), [(0, 0, 1)], dims=2
        ),
        "ConvE cannot be cropped": lambda: rank(
            ConvE.init(3, 1, 12, embedding_height=2), [(0, 0, 1)], dims=2
        ),
        "images of height 5": conve_of(12, embedding_height=5),
        "a kernel of 3 fits": conve_of(12, embedding_height=6, kernel_size=3),
        "initial_bias must be finite; got nan": conve_of(
            12, embedding_height=2, kernel_size=1, initial_bias=math.nan
        ),
        r"relation must have shape \[2R, 12\]": of_zeros(
            ConvE, (2, 12), (3, 12), embedding_height=2
        ),
        "side must be": lambda: DistMult(torch.zeros(2, 4), torch.zeros(1, 4)).queries(
            torch.tensor([0]), torch.tensor([0]), "middle"
        ),
    }
}


@each_of(BAD)
def test_bad_input_is_named(error, message, call):
    with pytest.raises(error, match=message):
        call()
