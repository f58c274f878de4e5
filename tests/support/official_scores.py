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
