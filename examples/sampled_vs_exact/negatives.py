"""Negatives that are drawn for test triples, as the OGB data sets store them.

A negative of a query is an entity that is no known answer, drawn without repetition, either from
all entities or from the type-correct candidates of the relation (Hu et al. 2020: 500 negatives a
side for ogbl-wikikg2, and 500 of the right type for ogbl-biokg).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kgfast import KnownTriples, TypeConstraints
from kgfast.rng import mix

SIDES = ("head", "tail")
KINDS = ("uniform", "typed")
_PAIRS = 1 << 20  # pairs of queries and entities in a block
_FEW = 8  # a pool with fewer than _FEW * count entities is shuffled as a whole


def drawn(
    hrt: Tensor,
    known: KnownTriples,
    num_entities: int,
    count: int,
    draw: int,
    allowed: TypeConstraints | None = None,
) -> dict[str, Tensor]:
    """Draw negatives for the head and the tail of each triple.

    Parameters
    ----------
    hrt
        int64 ``[T, 3]``, which ``known`` contains.
    known
        Triples that are never negatives.
    num_entities
        Number of entities.
    count
        Negatives a query, K.
    draw
        Number of the draw, which seeds the random numbers.
    allowed
        Candidates of each relation and side; by default all entities.

    Returns
    -------
    dict
        For "head" and "tail" int64 ``[T, K]``, in random order: the first columns are a draw of
        fewer negatives. A query with fewer than K candidates has all of them, and then -1.
    """
    found = {}
    for number, side in enumerate(SIDES):
        seed = mix(draw, KINDS.index("uniform" if allowed is None else "typed"), number)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.empty(len(hrt), count, dtype=torch.int64, device="cpu")
        for rows, pool in _pools(hrt[:, 1], num_entities, side, allowed):
            for part in rows.split(max(1, _PAIRS // num_entities)):
                answers = _answers(hrt[part], known, side, num_entities)
                ids[part] = _of_pool(pool, answers, count, generator)
        found[side] = ids
    return found


def _pools(
    relations: Tensor, num_entities: int, side: str, allowed: TypeConstraints | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield triples and the entities from which their negatives are drawn."""
    if allowed is None:
        every = torch.arange(len(relations), dtype=torch.int64, device="cpu")
        yield every, torch.arange(num_entities, dtype=torch.int64, device="cpu")
        return
    for relation in relations.unique().tolist():
        rows = (relations == relation).nonzero()[:, 0]
        yield rows, allowed.candidates(relation, side)


def _answers(hrt: Tensor, known: KnownTriples, side: str, num_entities: int) -> Tensor:
    """Return for each triple which entities are known answers: bool ``[B, N]``."""
    anchors = hrt[:, 2 if side == "head" else 0]
    indptr, ids = known.exclude(anchors, hrt[:, 1], side)
    rows = torch.arange(len(hrt), dtype=torch.int64, device="cpu")
    found = torch.zeros(len(hrt), num_entities, dtype=torch.bool, device="cpu")
    found[torch.repeat_interleave(rows, indptr.diff()), ids] = True
    return found


def _of_pool(pool: Tensor, answers: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``[B, count]`` entities of a pool that are no answers; -1 where it has fewer.

    Draws from a large pool may repeat, and rows that then have too few entities start again: they
    shuffle the pool, as all rows of a small pool do. Each row takes its first new entities.
    """
    found = torch.full((len(answers), count), -1, dtype=torch.int64, device="cpu")
    rows = torch.arange(len(answers), dtype=torch.int64, device="cpu")
    for shuffles in (True,) if len(pool) < _FEW * count else (False, True):
        if shuffles:
            ids = pool[_shuffled(len(rows), len(pool), generator)]
        else:  # so many that fewer than count differ hardly ever
            size = len(rows), count + count // 4 + 64
            ids = pool[torch.randint(len(pool), size, generator=generator)]
        is_new = _are_new(ids, answers[rows])
        numbers = is_new.cumsum(1)
        is_new &= numbers <= count
        places = torch.arange(count, dtype=torch.int64, device="cpu") < numbers[:, -1:]
        own = torch.full(places.shape, -1, dtype=torch.int64, device="cpu")
        own[places] = ids[is_new]
        found[rows] = own
        rows = rows[numbers[:, -1] < count]
    return found


def _shuffled(num_rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Return a permutation of ``size`` numbers in each row."""
    keys = torch.randint(1 << 31, (num_rows, size), generator=generator) << 32
    keys += torch.arange(size, dtype=torch.int64, device="cpu")
    keys.numpy().sort(axis=1)  # half the time of torch.argsort
    return keys & ((1 << 32) - 1)


def _are_new(ids: Tensor, answers: Tensor) -> Tensor:
    """Return which ids ``[B, M]`` are no answers and stand in no earlier column of their row."""
    columns = torch.arange(ids.shape[1], dtype=torch.int32, device="cpu").expand(ids.shape)
    first = torch.full(answers.shape, ids.shape[1], dtype=torch.int32, device="cpu")
    first.masked_fill_(answers, -1)
    first.scatter_reduce_(1, ids, columns, "amin")
    return first.gather(1, ids) == columns
