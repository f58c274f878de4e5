"""Scores that are affine in the candidate as dot products, and scores that are not."""

import pytest
import torch

import kgfast
from kgfast.adapters.affine import AffineModel, NotAffineError, Parts

ENTITIES, RELATIONS = 33, 5


def tables(*widths, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (ENTITIES, RELATIONS, ENTITIES)
    return Parts(
        *[
            [
                torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(dtype)
                for shape in shapes
            ]
            for size, shapes in zip(sizes, widths, strict=True)
        ]
    )


SCORES = {
    "bilinear": (
        lambda h, r, t: torch.einsum("bi,bij,bj->b", h[0], r[0], t[0]),
        tables([(4,)], [(4, 3)], [(3,)]),
    ),
    "with a constant and a bias": (
        lambda h, r, t: (h[0] * r[0] * t[0]).sum(1) + r[0].sum(1) + t[1] + h[1],
        tables([(4,), ()], [(4,)], [(4,), ()]),
    ),
    "complex": (
        lambda h, r, t: (h[0] * r[0] * t[0].conj()).real.sum(1),
        tables([(4,)], [(4,)], [(4,)], dtype=torch.complex64),
    ),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("side", ["head", "tail"])
def test_scores_are_those_of_the_function(name, side):
    score, parts = SCORES[name]
    model = AffineModel(score, parts)
    anchors = torch.arange(ENTITIES)
    relations = anchors % RELATIONS
    queries = model.queries(anchors, relations, side)
    assert queries.dtype == torch.float32
    found = queries.double() @ model.candidates(side).table.double().T
    wide = torch.complex128 if name == "complex" else torch.float64
    for n in range(ENTITIES):
        other = torch.full_like(anchors, n)
        heads, tails = (anchors, other) if side == "tail" else (other, anchors)
        rows = [
            [table[ids].to(wide) for table in group]
            for group, ids in ((parts.heads, heads), (parts.relations, relations),
                               (parts.tails, tails))
        ]  # fmt: skip
        assert torch.allclose(found[:, n], score(*rows), atol=1e-5)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_it_ranks_in_every_mode_of_gradients(mode):
    model = AffineModel(*SCORES["with a constant and a bias"])
    triples = [(n, n % RELATIONS, (3 * n) % ENTITIES) for n in range(ENTITIES)]
    expected = kgfast.rank(model, triples)
    with mode():
        found = kgfast.rank(AffineModel(*SCORES["with a constant and a bias"]), triples)
    assert torch.equal(found.greater, expected.greater)


def test_batches_do_not_change_queries():
    score, parts = SCORES["bilinear"]
    model, anchors = AffineModel(score, parts), torch.arange(ENTITIES)
    whole = model.queries(anchors, anchors % RELATIONS, "tail")
    rows = [model.queries(anchors[[n]], anchors[[n]] % RELATIONS, "tail") for n in range(ENTITIES)]
    assert torch.equal(whole, torch.cat(rows))
    assert model.queries(anchors[:0], anchors[:0], "tail").shape == (0, 4)


def test_what_is_not_affine_is_refused():
    square = tables([(4,)], [(4,)], [(4,)])

    def distance(h, r, t):
        return -((h[0] + r[0] - t[0]) ** 2).sum(1)

    with pytest.raises(NotAffineError, match="not affine in the head"):
        AffineModel(distance, square)
    with pytest.raises(NotAffineError, match="not affine in the tail"):
        AffineModel(distance, square, sides=("tail",))

    def only_heads(h, r, t):
        return (h[0] * r[0] * t[0].relu()).sum(1)

    model = AffineModel(only_heads, square, sides=("head",))
    with pytest.raises(NotImplementedError, match="tail"):
        kgfast.rank(model, [(0, 0, 1)])
    with pytest.raises(NotImplementedError, match="ranks no relations"):
        kgfast.rank(model, [(0, 0, 1)], sides=("relation",))
