"""Models against their equations, in plain complex arithmetic."""

import cmath
import math

import pytest
import torch

from kgfast import ComplEx, DistMult, RotatE, TransE
from kgfast.kernels.reference.rank import canonical_scores

N, R, D = 7, 3, 5


def tables(width: int, relation_width: int, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    entity = torch.randn(N, width, generator=generator, dtype=torch.float64).to(dtype)
    return entity, torch.randn(R, relation_width, generator=generator, dtype=torch.float64).to(
        dtype
    )


def complex_row(row: torch.Tensor, layout: str = "halves") -> list[complex]:
    values = row.tolist()
    if layout == "interleaved":
        return [complex(a, b) for a, b in zip(values[0::2], values[1::2], strict=True)]
    half = len(values) // 2
    return [complex(a, b) for a, b in zip(values[:half], values[half:], strict=True)]


def assert_scores(model, score_of) -> None:
    """Both sides of every triple score what the equation says, up to float64 rounding."""
    for r in range(R):
        for side in ("tail", "head"):
            anchors = torch.arange(N)
            queries = model.queries(anchors, torch.full((N,), r), side)
            candidates = model.candidates(side)
            scores = canonical_scores(queries[:, None], candidates.table, model.score)
            for a in range(N):
                for n in range(N):
                    h, t = (a, n) if side == "tail" else (n, a)
                    assert scores[a, n].item() == pytest.approx(score_of(h, r, t), rel=1e-12)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("norm", ["modulus", "l2"])
@pytest.mark.parametrize("relation_format", ["raw", "phase", "complex"])
def test_rotate(layout, norm, relation_format):
    entity, relation = tables(2 * D, 2 * D if relation_format == "complex" else D)
    model = RotatE(
        entity, relation, gamma=6.0, relation_format=relation_format, norm=norm, layout=layout
    )

    def score(h, r, t):
        if relation_format == "complex":
            turn = complex_row(relation[r], layout)
            turn_back = [z.conjugate() for z in turn]
        else:
            unit = math.pi / ((6.0 + 2.0) / D) if relation_format == "raw" else 1.0
            turn = [cmath.exp(1j * p * unit) for p in relation[r].tolist()]
            turn_back = [z.conjugate() for z in turn]
        head, tail = complex_row(entity[h], layout), complex_row(entity[t], layout)
        if score.side == "tail":
            differences = [abs(a * z - b) for a, z, b in zip(head, turn, tail, strict=True)]
        else:
            differences = [abs(b * z - a) for a, z, b in zip(head, turn_back, tail, strict=True)]
        if norm == "modulus":
            return -sum(differences)
        return -math.sqrt(sum(x * x for x in differences))

    for side in ("tail", "head"):
        score.side = side
        for r in range(R):
            queries = model.queries(torch.arange(N), torch.full((N,), r), side)
            scores = canonical_scores(queries[:, None], model.candidates(side).table, model.score)
            for a in range(N):
                for n in range(N):
                    h, t = (a, n) if side == "tail" else (n, a)
                    assert scores[a, n].item() == pytest.approx(score(h, r, t), rel=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_transe(norm):
    entity, relation = tables(D, D)
    power = 1 if norm == "l1" else 2

    def score(h, r, t):
        difference = (entity[h] + relation[r] - entity[t]).tolist()
        return -(sum(abs(x) ** power for x in difference) ** (1 / power))

    assert_scores(TransE(entity, relation, norm=norm), score)


def test_distmult():
    entity, relation = tables(D, D)
    assert_scores(
        DistMult(entity, relation),
        lambda h, r, t: math.fsum((entity[h] * relation[r] * entity[t]).tolist()),
    )


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_complex(layout):
    entity, relation = tables(2 * D, 2 * D)

    def score(h, r, t):
        parts = zip(
            complex_row(entity[h], layout),
            complex_row(relation[r], layout),
            complex_row(entity[t], layout),
            strict=True,
        )
        return sum((a * b * c.conjugate()).real for a, b, c in parts)

    assert_scores(ComplEx(entity, relation, layout=layout), score)


def test_the_layouts_of_one_rotate_agree_exactly():
    entity, phases = tables(2 * D, D, torch.float32)
    interleaved = torch.stack([entity[:, :D], entity[:, D:]], -1).flatten(1)
    a = RotatE(entity, phases, relation_format="phase")
    b = RotatE(interleaved, phases, relation_format="phase", layout="interleaved")
    q = a.queries(torch.arange(N), torch.zeros(N).long(), "tail")
    p = b.queries(torch.arange(N), torch.zeros(N).long(), "tail")
    assert torch.equal(torch.stack([q[:, :D], q[:, D:]], -1).flatten(1), p)


def test_the_head_query_is_the_tail_query_of_the_inverse_relation():
    entity, phases = tables(2 * D, D, torch.float32)
    model = RotatE(entity, phases, relation_format="phase")
    inverse = RotatE(entity, -phases, relation_format="phase")
    anchors, relations = torch.arange(N), torch.arange(N) % R
    assert torch.equal(
        model.queries(anchors, relations, "head"), inverse.queries(anchors, relations, "tail")
    )


def test_queries_do_not_depend_on_the_batch():
    model = RotatE.init(300, 7, 600, seed=1)
    anchors, relations = torch.arange(300), torch.arange(300) % 7
    whole = model.queries(anchors, relations, "tail")
    parts = [
        model.queries(a, r, "tail")
        for a, r in zip(anchors.split(37), relations.split(37), strict=True)
    ]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_query_dtypes(dtype):
    entity, relation = tables(2 * D, D, dtype)
    queries = RotatE(entity, relation).queries(torch.arange(2), torch.arange(2), "head")
    assert queries.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_tensors_are_held_without_copying():
    entity, relation = tables(2 * D, D, torch.float32)
    model = RotatE(entity, relation)
    assert model.entity.data_ptr() == entity.data_ptr()
    assert not model.entity.requires_grad
    parameter = torch.nn.Parameter(entity)
    assert RotatE(parameter, relation).entity is parameter
    assert set(model.state_dict()) == {"entity", "relation"}


@pytest.mark.parametrize("model", [RotatE, TransE, DistMult, ComplEx])
def test_init_is_seeded_trainable_and_leaves_the_global_generator_alone(model):
    state = torch.get_rng_state()
    first, second = model.init(9, 2, 4, seed=5), model.init(9, 2, 4, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.entity, second.entity)
    assert not torch.equal(first.entity, model.init(9, 2, 4, seed=6).entity)
    assert first.entity.requires_grad
    assert first.relation.requires_grad
    assert (first.num_entities, first.num_relations, first.dim) == (9, 2, 4)


def test_rotate_init_range():
    model = RotatE.init(1_000, 5, 10, gamma=8.0, seed=0)
    assert model.embedding_range == 1.0
    assert 0.99 < model.entity.abs().max().item() <= 1.0


BAD = {
    "odd": (lambda: RotatE(torch.zeros(2, 3), torch.zeros(1, 1)), ValueError, "even number"),
    "relation width": (
        lambda: RotatE(torch.zeros(2, 4), torch.zeros(1, 3)),
        ValueError,
        "relation must have 2 columns",
    ),
    "format": (
        lambda: RotatE(torch.zeros(2, 4), torch.zeros(1, 2), relation_format="degrees"),
        ValueError,
        "relation_format must be one of raw, phase, complex",
    ),
    "norm": (lambda: TransE(torch.zeros(2, 4), torch.zeros(1, 4), norm="l3"), ValueError, "norm"),
    "layout": (
        lambda: ComplEx(torch.zeros(2, 4), torch.zeros(1, 4), layout="planes"),
        ValueError,
        "layout must be one of halves, interleaved",
    ),
    "gamma": (
        lambda: RotatE(torch.zeros(2, 4), torch.zeros(1, 2), gamma=float("nan")),
        ValueError,
        "gamma must be finite",
    ),
    "axes": (lambda: DistMult(torch.zeros(4), torch.zeros(1, 4)), ValueError, "two axes"),
    "integers": (
        lambda: DistMult(torch.zeros(2, 4).long(), torch.zeros(1, 4)),
        TypeError,
        "entity must be floating point",
    ),
    "array": (lambda: DistMult([[1.0]], torch.zeros(1, 1)), TypeError, "entity must be a tensor"),
    "devices": (
        lambda: DistMult(torch.zeros(2, 4), torch.zeros(1, 4, device="meta")),
        ValueError,
        "entity is on cpu but relation on meta",
    ),
    "side": (
        lambda: DistMult(torch.zeros(2, 4), torch.zeros(1, 4)).queries(
            torch.tensor([0]), torch.tensor([0]), "relation"
        ),
        ValueError,
        "side must be 'head' or 'tail'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make()
