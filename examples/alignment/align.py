"""Rank aligned entities of two graphs by cosine and by CSLS, without a matrix [N, N].

    python examples/alignment/align.py                          15,000 pairs, d = 256, as DBP15K
    python examples/alignment/align.py --entities 100000        a matrix of 40 GB elsewhere
    python examples/alignment/align.py --source a.npy --target b.npy    row i of a is row i of b

CSLS (Conneau et al. 2018, arXiv 1710.04087, equation 2) of source i and target j is ``2 cos(i, j) -
r_source(i) - r_target(j)``, where r is the mean cosine of a row with its k nearest rows of the
other table. Among the targets of one source ``r_source(i)`` is constant. Ranks by CSLS are
therefore ranks by ``cos(i, j) - r_target(j) / 2``: a product and a bias.
"""

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast import ops, tables

NEIGHBOURS = 10  # k of CSLS in the paper


class Alignment(NamedTuple):
    """Ranks of true partners, float64 ``[N]``: ties count half."""

    cosine: Tensor
    csls: Tensor


def unit_rows(table: Tensor) -> Tensor:
    """Return float32 rows of length 1; a row of zeros is an error that names it."""
    unit: Tensor = tables.UnitRows(tables.open(table)).block(0, len(table)).float()
    return unit


def mean_similarity(rows: Tensor, others: Tensor, k: int) -> Tensor:
    """Return the mean cosine of each row with its ``k`` nearest other rows, float64 ``[N]``."""
    best: Tensor = ops.topk(rows, others, k)[0]
    return best.double().mean(1)


def ranks(source: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the rank of target i among all targets of source i, float64 ``[N]``."""
    partners = torch.arange(len(source), dtype=torch.int64, device=source.device)
    nothing = partners.new_zeros(len(source) + 1), partners.new_empty(0)
    greater, equal, *_ = ops.rank_counts(source, target, partners, *nothing, "dot", bias=bias)
    return 1 + greater + equal.double() / 2


def align(source: Tensor, target: Tensor, k: int = NEIGHBOURS) -> Alignment:
    """Rank the partner of each source row: the target row with the same index.

    Parameters
    ----------
    source, target : Tensor
        ``[N, D]`` and ``[M, D]`` of unit rows, ``M >= N``: rows beyond ``N`` have no partner.
    k : int
        Neighbours of a row that CSLS takes the mean of.
    """
    if len(target) < len(source):
        raise ValueError(
            f"target must have at least {len(source)} rows, one for each of source; got "
            f"{len(target)}"
        )
    bias = mean_similarity(target, source, k) / -2
    return Alignment(ranks(source, target), ranks(source, target, bias))


def synthetic(entities: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return two noisy copies of one table, each with hubs: rows near very many others."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")

    common, hub = normal(entities, dim), normal(dim)
    strengths = [0.7 * normal(entities, 1).abs() for _ in range(2)]
    return tuple(common + 1.8 * normal(entities, dim) + it * hub for it in strengths)  # type: ignore


def report(found: Alignment) -> Iterator[str]:
    """Yield a table: hits@1, hits@10 and MRR of both scores."""
    yield "          hits@1  hits@10     MRR"
    for name, own in found._asdict().items():
        hits = [float((own <= k).double().mean()) for k in (1, 10)]
        yield f"{name:<8}  {hits[0]:.4f}   {hits[1]:.4f}  {float((1 / own).mean()):.4f}"


def main() -> None:
    """Align two tables of files, or synthetic ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--source", metavar="FILE", help="a table, as kgfast.tables.open reads it")
    parser.add_argument("--target", metavar="FILE")
    parser.add_argument("--entities", type=int, default=15_000, help="of synthetic tables")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("-k", type=int, default=NEIGHBOURS, help="neighbours of CSLS")
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target go together")
    if options.source is None:
        given = synthetic(options.entities, options.dim)
    else:
        opened = [tables.open(it) for it in (options.source, options.target)]
        given = opened[0].block(0, len(opened[0])), opened[1].block(0, len(opened[1]))
    source, target = map(unit_rows, given)
    start = time.perf_counter()
    found = align(source, target, options.k)
    seconds = time.perf_counter() - start
    print(f"{len(source):,} of {len(target):,} rows, d = {source.shape[1]}: {seconds:.1f} s")
    print(*report(found), sep="\n")


if __name__ == "__main__":
    main()
