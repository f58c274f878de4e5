"""Growth of the synthetic graph: relations, the forest of entities, triples.

`kgfast.datasets.synthetic` describes the graph.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_Kind = Literal["tree", "sibling", "symmetric", "whole", "part", "composed"]

# Shares of the triples, like WN18RR's: two relations hold most, all others little.
_WEIGHTS: dict[_Kind, float] = {
    "tree": 0.38,
    "symmetric": 0.32,
    "whole": 0.06,
    "part": 0.06,
    "composed": 0.06,
    "sibling": 0.06,
}
THEN = "child_of_then_"
_HOPELESS = 0.25  # share of entities with nearly no correlation to the parent


class Relation(NamedTuple):
    """Relation of the graph and its pattern."""

    name: str
    kind: _Kind
    cycle: int  # 0 for the first relation of a kind, then 1, ...

    @property
    def weight(self) -> float:
        """Return the share of the triples; later relations of a kind get fewer."""
        return float(_WEIGHTS[self.kind] / (1 + self.cycle) ** 2)


@dataclass(frozen=True, eq=False)
class Growth:
    """Parent and link of each entity in growth order: parents before children."""

    relations: list[Relation]
    num_primaries: int  # twins come after the primaries, in the order of the originals
    parent: Ints  # [N], -1 for roots
    link: Ints  # [N], the relation of the link
    upward: npt.NDArray[np.bool_]  # [N], whether the link leads from the entity to the parent
    level: Ints  # [N], 0 for roots
    correlation: Floats  # [N], with the rotated parent
    id: Ints  # [N], the entity's id in the graph


def relation_catalogue(num_relations: int) -> list[Relation]:
    """Return the relations in the order of ids."""
    relations = [Relation("child_of", "tree", 0)]
    cycle = 0
    while len(relations) < num_relations:
        then = "child_of" if cycle == 0 else f"has_part_{cycle - 1}"
        relations += [
            Relation(f"sibling_{cycle}", "sibling", cycle),
            Relation(f"symmetric_{cycle}", "symmetric", cycle),
            Relation(f"has_part_{cycle}", "whole", cycle),
            Relation(f"part_of_{cycle}", "part", cycle),
            Relation(THEN + then, "composed", cycle),
        ]
        cycle += 1
    return relations[:num_relations]


def _ids(relations: list[Relation], *kinds: _Kind) -> list[int]:
    return [i for i, relation in enumerate(relations) if relation.kind in kinds]


def grow(
    relations: list[Relation], num_entities: int, num_triples: int, rng: np.random.Generator
) -> Growth:
    """Grow a forest of primaries and twins."""
    weights = np.array([relation.weight for relation in relations])
    symmetric, trees = _ids(relations, "symmetric"), _ids(relations, "tree", "whole")
    share = weights[symmetric].sum() / weights.sum()
    num_twins = int(min(num_triples * share / 2, 0.37 * num_entities))
    num_primaries = num_entities - num_twins
    parent = _forest(num_primaries, rng)
    link = np.full(num_entities, 0, np.int64)
    grown = np.flatnonzero(parent >= 0)
    link[grown] = _shuffled(trees, weights, len(grown), rng)
    link[num_primaries:] = _shuffled(symmetric, weights, num_twins, rng)
    parent = np.append(parent, np.arange(num_twins))
    return Growth(
        relations,
        num_primaries,
        parent,
        link,
        upward=link == 0,
        level=_levels(parent),
        correlation=_correlations(num_entities, rng),
        id=rng.permutation(num_entities),
    )


def _forest(size: int, rng: np.random.Generator) -> Ints:
    """Return the parent of each entity, an earlier one, -1 for roots."""
    num_roots = max(1, size // 500)
    order = np.arange(size)
    pool = np.maximum(num_roots, order // 4)
    # a square root is rounded alike on every processor, a power is not
    drawn = rng.random(size)
    parent = (drawn * np.sqrt(drawn) * pool).astype(np.int64)
    parent[:num_roots] = -1
    return parent


def _shuffled(
    ids: list[int], weights: npt.NDArray[np.float64], size: int, rng: np.random.Generator
) -> Ints:
    """Return `size` relations in random order, each in proportion to its weight."""
    if not ids:
        return np.empty(0, np.int64)
    edges = np.cumsum(weights[ids]) / weights[ids].sum()
    positions = (np.arange(size) + 0.5) / max(size, 1)
    chosen = np.searchsorted(edges, positions).clip(max=len(ids) - 1)
    return rng.permutation(np.array(ids, np.int64)[chosen])


def _levels(parent: Ints) -> Ints:
    level = np.zeros(len(parent), np.int64)
    while True:
        deeper = np.where(parent >= 0, level[parent] + 1, 0)
        if np.array_equal(deeper, level):
            return level
        level = deeper


def _correlations(size: int, rng: np.random.Generator) -> Floats:
    hopeless = rng.random(size) < _HOPELESS
    spread = rng.random(size)
    return np.where(hopeless, 0.15 * spread, np.sqrt(0.3 + 0.68 * spread)).astype(np.float32)


def draw_triples(growth: Growth, num_triples: int, rng: np.random.Generator) -> Ints:
    """Return the graph's triples `[T, 3]`, in growth order ids."""
    relations = growth.relations
    weights = np.array([relation.weight for relation in relations])
    fillers = _ids(relations, "composed", "sibling")
    most = round(num_triples * (1 - weights[fillers].sum() / weights.sum()))
    links, spare = _split_links(_links(growth), relations, most)
    grown = _stated(links, relations)
    filled = _fillers(grown, growth, fillers, num_triples - len(grown), rng)
    hrt = np.concatenate([grown, *filled, _stated(spare, relations)])
    if len(hrt) < num_triples:
        raise ValueError(
            f"{num_triples:,} triples are too many: the patterns of {len(relations):,} relations "
            f"on {len(growth.parent):,} entities hold {len(hrt):,}"
        )
    return hrt[:num_triples]


def _links(growth: Growth) -> Ints:
    """Return rows (entity, parent, relation), early ones first, and the links of twins."""
    first_twin = growth.num_primaries
    entity = np.flatnonzero(growth.parent >= 0)
    own = np.stack([entity, growth.parent[entity], growth.link[entity]], axis=1)
    copied = own[own[:, 1] + first_twin < len(growth.parent)]
    copied = copied[copied[:, 0] + first_twin < len(growth.parent)]
    twins = copied[:, :2] + first_twin
    same = growth.link[twins[:, 0]] == growth.link[twins[:, 1]]
    copied = np.concatenate([twins, copied[:, 2:]], axis=1)[same]
    links = np.concatenate([own, copied])
    return links[np.argsort(links[:, 0] % first_twin, kind="stable")]


def _split_links(links: Ints, relations: list[Relation], most: int) -> tuple[Ints, Ints]:
    """Return the first links, as many as state at most `most` triples, and the rest."""
    num_stated = np.ones(len(relations), np.int64)
    num_stated[_ids(relations, "symmetric")] = 2
    num_stated[[r - 1 for r in _ids(relations, "part")]] = 2
    count = int(np.searchsorted(np.cumsum(num_stated[links[:, 2]]), most, side="right"))
    return links[:count], links[count:]


def _stated(links: Ints, relations: list[Relation]) -> Ints:
    """Return the triples that links stand for `[T, 3]`."""
    entity, parent, relation = links.T
    kinds = np.array([kind_of.kind for kind_of in relations])[relation]
    has_inverse = np.isin(relation + 1, _ids(relations, "part"))
    upward = np.stack([entity, relation, parent], axis=1)
    downward = np.stack([parent, relation, entity], axis=1)
    return np.concatenate(
        [
            upward[(kinds == "tree") | (kinds == "symmetric")],
            downward[(kinds == "symmetric") | (kinds == "whole")],
            (upward + np.array([0, 1, 0]))[has_inverse],
        ]
    )


def _fillers(
    grown: Ints, growth: Growth, fillers: list[int], total: int, rng: np.random.Generator
) -> list[Ints]:
    """Return up to `total` triples of the compositions and sibling relations."""
    relations = growth.relations
    names = {relation.name: i for i, relation in enumerate(relations)}
    children = grown[grown[:, 1] == 0][:, ::2]  # (child, parent): every child has one
    num_children = np.bincount(children[:, 1], minlength=len(growth.parent))
    pools: dict[int, Ints] = {}
    capacities = []
    for r in fillers:
        capacity = int((num_children * (num_children - 1)).sum())
        if relations[r].kind == "composed":
            then = grown[grown[:, 1] == names[relations[r].name.removeprefix(THEN)]][:, ::2]
            pools[r] = _compositions(children, then, rng.permutation(len(growth.parent)))
            capacity = len(pools[r])
        capacities.append(capacity)
    sizes = _apportioned(total, [relations[r].weight for r in fillers], capacities)
    parts = []
    for r, size in zip(fillers, sizes, strict=True):
        if r not in pools:
            pools[r] = _siblings(children, num_children, size, rng)
        heads, tails = pools[r][:size].T
        parts.append(np.stack([heads, np.full(size, r), tails], axis=1))
    return parts


def _apportioned(total: int, weights: list[float], capacities: list[int]) -> list[int]:
    """Share `total` out by weight; the rest of a full relation goes to other relations."""
    sizes = [0] * len(weights)
    while (left := total - sum(sizes)) > 0:
        room = [i for i, size in enumerate(sizes) if size < capacities[i]]
        if not room:
            break
        sum_of_weights = sum(weights[i] for i in room)
        for i in room:
            share = max(1, int(left * weights[i] / sum_of_weights))
            sizes[i] += min(share, capacities[i] - sizes[i], total - sum(sizes))
    return sizes


def _compositions(first: Ints, then: Ints, priority: Ints) -> Ints:
    """Return all (x, z) with (x, y) in `first` and (y, z) in `then`, in order of priority[y]."""
    first = first[np.argsort(priority[first[:, 1]], kind="stable")]
    then = then[np.argsort(then[:, 0], kind="stable")]
    start = np.searchsorted(then[:, 0], first[:, 1])
    count = np.searchsorted(then[:, 0], first[:, 1], side="right") - start
    return np.stack([np.repeat(first[:, 0], count), then[_ranges(start, count), 1]], axis=1)


def _siblings(children: Ints, num_children: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Return at least `size` pairs of siblings: small cliques, one family after the other."""
    clique = 4
    while (np.minimum(num_children, clique) * (np.minimum(num_children, clique) - 1)).sum() < size:
        clique *= 2
    children = rng.permutation(children)
    priority = rng.permutation(len(num_children))
    # stable: siblings are ties, whose order otherwise depends on the processor
    children = children[np.argsort(priority[children[:, 1]], kind="stable")]
    start = np.flatnonzero(np.diff(children[:, 1], prepend=-1))
    family_size = np.diff(np.append(start, len(children)))
    place = np.arange(len(children)) - np.repeat(start, family_size)
    # each sibling pairs with the earlier ones of the family
    count = np.where(place < clique, place, 0)
    younger = np.repeat(children[:, 0], count)
    older = children[_ranges(np.repeat(start, family_size), count), 0]
    both = np.stack([younger, older, older, younger], axis=1)
    return both.reshape(-1, 2)


def _ranges(start: Ints, count: Ints) -> Ints:
    """Concatenate the ranges start[i]..start[i] + count[i] - 1."""
    shift = np.repeat(start - np.cumsum(count) + count, count)
    return shift + np.arange(len(shift))
