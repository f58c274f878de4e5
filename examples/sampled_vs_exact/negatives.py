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
_FEW = 8  # pools with fewer than _FEW * count entities are shuffled as a whole


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
        ids = torch.full((len(hrt), count), -1, dtype=torch.int64, device="cpu")
        for rows, pool in _pools(hrt[:, 1], num_entities, side, allowed):
            width = len(pool) if len(pool) < _FEW * count else _drawn_width(count)
            for part in rows.split(max(1, _PAIRS // max(1, width))):
                answers = _answers(hrt[part], known, side)
                ids[part] = _of_pool(pool, answers, len(part), count, generator)
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


def _answers(hrt: Tensor, known: KnownTriples, side: str) -> tuple[Tensor, Tensor]:
    """Return rows and ids of the known answers, ascending by row and id."""
    anchors = hrt[:, 2 if side == "head" else 0]
    indptr, ids = known.exclude(anchors, hrt[:, 1], side)
    every = torch.arange(len(hrt), dtype=torch.int64, device="cpu")
    return torch.repeat_interleave(every, indptr.diff()), ids


def _of_pool(
    pool: Tensor,
    answers: tuple[Tensor, Tensor],
    num_rows: int,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw ``[num_rows, count]`` entities of an ascending pool that are no answers."""
    if len(pool) < _FEW * count:
        return _shuffled(pool, answers, num_rows, count, generator)
    width = _drawn_width(count)
    places = torch.randint(len(pool), (num_rows, width), generator=generator)
    ids = pool[places]
    ordered, order = torch.sort(ids, dim=1, stable=True)
    repeats = torch.zeros_like(ids, dtype=torch.bool)
    repeats[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    is_new = torch.empty_like(repeats).scatter_(1, order, ~repeats)
    is_new &= ~_among(ids, answers)
    is_new &= is_new.cumsum(1) <= count
    enough = is_new.sum(1) == count
    found = torch.full((num_rows, count), -1, dtype=torch.int64, device="cpu")
    found[enough] = ids[enough][is_new[enough]].view(-1, count)
    for row in (~enough).nonzero()[:, 0].tolist():  # rows with very many known answers
        own = torch.zeros_like(answers[1][answers[0] == row]), answers[1][answers[0] == row]
        found[row] = _shuffled(pool, own, 1, count, generator)[0]
    return found


def _drawn_width(count: int) -> int:
    """Return the number of draws with repetition that leave ``count`` without, nearly always."""
    return count + count // 4 + 64


def _shuffled(
    pool: Tensor,
    answers: tuple[Tensor, Tensor],
    num_rows: int,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Shuffle the pool for each row and return the first ``count`` that are no answers."""
    keys = torch.rand((num_rows, len(pool)), generator=generator)
    keys[_among(pool.expand(num_rows, -1), answers)] = 2.0  # behind all others
    keys, order = torch.sort(keys, dim=1, stable=True)
    found = torch.full((num_rows, count), -1, dtype=torch.int64, device="cpu")
    ids = torch.where(keys < 2.0, pool[order], -1)[:, :count]
    found[:, : ids.shape[1]] = ids
    return found


def _among(ids: Tensor, answers: tuple[Tensor, Tensor]) -> Tensor:
    """Return which ids ``[B, M]`` are answers of their rows."""
    if not len(answers[0]) or not ids.numel():
        return torch.zeros(ids.shape, dtype=torch.bool, device="cpu")
    count = int(max(ids.max(), answers[1].max())) + 1
    rows = torch.arange(len(ids), dtype=torch.int64, device="cpu")[:, None]
    keys, wanted = answers[0] * count + answers[1], rows * count + ids
    place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return keys[place] == wanted
