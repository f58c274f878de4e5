"""Scores by the equations of the official RotatE code, which DGL-KE shares."""

import math

import torch


def score(name, head, relation, tail, gamma, limit):
    """Compute scores ``[..., D] -> [...]``; a relation of RotatE is an angle of pi at ``limit``."""
    if name in ("TransE_l1", "TransE_l2"):
        return gamma - (head + relation - tail).norm(p=int(name[-1]), dim=-1)
    if name == "DistMult":
        return (head * relation * tail).sum(-1)
    head, tail = as_complex(head), as_complex(tail)
    if name == "ComplEx":
        return (head * as_complex(relation) * tail.conj()).real.sum(-1)
    turn = torch.polar(torch.ones_like(relation), relation / (limit / math.pi))
    return gamma - (head * turn - tail).abs().sum(-1)


def as_complex(rows):
    return torch.complex(*rows.chunk(2, -1))


def assert_ranked(ranks, score_of, num_entities):
    """Compare ranks of heads and tails; ``score_of(heads, relations, tails)`` takes ids."""
    everyone = torch.arange(num_entities)
    for row, (h, r, t) in enumerate(ranks.triples.tolist()):
        relations = torch.full_like(everyone, r)
        for column, (heads, tails, own) in enumerate(
            [(everyone, everyone * 0 + t, h), (everyone * 0 + h, everyone, t)]
        ):
            scores = score_of(heads, relations, tails)
            greater = (scores > scores[own]) & (everyone != own)
            assert int(greater.sum()) == int(ranks.greater[row, column])
