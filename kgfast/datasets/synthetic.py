"""A synthetic graph that needs no download, and the RotatE embeddings it was drawn from.

The graph is grown, not sampled, so that its relations have the patterns that RotatE can express and
its ranks mean something without training:

1. *Primaries* form a forest. Entity i hangs below an earlier entity, by `child_of` or as a part
   (`has_part_k`, and its inverse `part_of_k`). Parents come from the first quarter of the entities
   before i, early ones more often, so family sizes are skewed.
2. The first primaries have a *twin* each, by `symmetric_k`, in both directions. If an entity and
   its parent have twins by the same relation, the twins are linked like their originals.
3. `child_of_then_child_of` and `child_of_then_has_part_k` are compositions of those triples.
4. `sibling_k` joins up to a few children of one parent, each with each, in both directions.

Triples of 1 and 2 are all kept unless the graph asks for fewer; 3 and 4 fill it up to the exact
number. Every embedding is its parent's, rotated backwards along the link, plus noise: the
correlation of an entity with its rotated parent is drawn per entity, from near 0 (hopeless) to
near 1 (easy).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.datasets.base import Dataset
from kgfast.graph import Triples, Vocabulary

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]
_Kind = Literal["tree", "sibling", "symmetric", "whole", "part", "composed"]

# Shares of the triples, like WN18RR's: two relations hold most, the others little.
_WEIGHTS: dict[_Kind, float] = {
    "tree": 0.38,
    "symmetric": 0.32,
    "whole": 0.06,
    "part": 0.06,
    "composed": 0.06,
    "sibling": 0.06,
}
_BLOCK = 64  # dimensions that share a random stream: a planting's prefix is the smaller planting
_SCALE = 0.02  # of an embedding's components, as trained RotatE entities have at gamma = 12
_THEN = "child_of_then_"
_HOPELESS = 0.25  # share of entities whose correlation with the parent is next to nothing


class _Relation(NamedTuple):
    name: str
    kind: _Kind
    cycle: int  # 0 for the first relation of its kind, then 1, ...

    @property
    def weight(self) -> float:
        return float(_WEIGHTS[self.kind] / (1 + self.cycle) ** 2)


@dataclass(frozen=True, eq=False)
class _Growth:
    """How each entity grew out of its parent, in growth order: parents before children."""

    relations: list[_Relation]
    num_primaries: int  # twins come after them, in the order of their originals
    parent: _Ints  # [N], -1 for roots
    link: _Ints  # [N], the relation of the link
    upward: npt.NDArray[np.bool_]  # [N], whether the link leads from the entity to its parent
    level: _Ints  # [N], 0 for roots
    correlation: _Floats  # [N], with the rotated parent
    id: _Ints  # [N], the entity's id in the graph


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticDataset(Dataset):
    """A synthetic graph that knows its embeddings; made by `synthetic`."""

    seed: int
    growth: _Growth

    def planted(self, dim: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Return RotatE embeddings that the graph is drawn from: t is near h * exp(i * phase[r]).

        Roots are complex normal with a standard deviation of 0.02 per component. Every other entity
        is `c * rotated parent + sqrt(1 - c**2) * noise`, with its own correlation c, the same at
        any dim. Phases are uniform for `child_of` and `has_part_k`, negated for the inverse
        `part_of_k`, 0 or pi for `symmetric_k`, 0 for `sibling_k`, and sums for compositions.

        Parameters
        ----------
        dim
            Complex dimensions. The first d of a larger planting are the planting of dim d, bit for
            bit.
        seed
            Another seed gives other embeddings of the same graph; the graph's own by default.

        Returns
        -------
        entity
            float32 `[num_entities, 2 * dim]`, halves: re | im.
        phase
            float32 `[num_relations, dim]`, in -pi..pi.

        Raises
        ------
        ValueError
            If dim is not positive.

        Examples
        --------
        >>> graph = synthetic(200, 6, 500, 50, 50)
        >>> entity, phase = graph.planted(16)
        >>> entity.shape, phase.shape
        (torch.Size([200, 32]), torch.Size([6, 16]))
        """
        if dim < 1:
            raise ValueError(f"dim must be positive, got {dim}")
        entity = np.empty((self.num_entities, 2, dim), np.float32)
        phase = np.empty((self.num_relations, dim), np.float32)
        seed = self.seed if seed is None else seed
        for start in range(0, dim, _BLOCK):
            rng = np.random.default_rng([seed, start // _BLOCK])
            width = min(_BLOCK, dim - start)
            phases = _planted_phases(self.growth.relations, rng)
            phase[:, start : start + width] = phases[:, :width]
            for half, values in enumerate(_planted_entities(self.growth, phases, rng)):
                entity[self.growth.id, half, start : start + width] = values[:, :width]
        return torch.from_numpy(entity.reshape(self.num_entities, 2 * dim)), torch.from_numpy(phase)


def synthetic(
    num_entities: int = 40_943,
    num_relations: int = 11,
    num_train: int = 86_835,
    num_valid: int = 3_034,
    num_test: int = 3_134,
    seed: int = 0,
) -> SyntheticDataset:
    """Make a graph with symmetric, inverse, composed, hierarchical and N-N relations.

    The default has the sizes of WN18RR and about its skew. The module's docstring says how the
    graph is grown; `SyntheticDataset.planted` gives its embeddings.

    Parameters
    ----------
    num_entities, num_relations
        Sizes of the vocabularies. Relations come in the order `child_of`, `sibling_0`,
        `symmetric_0`, `has_part_0`, `part_of_0`, `child_of_then_child_of`, `sibling_1`, ...
    num_train, num_valid, num_test
        Numbers of triples: exact, and all triples are distinct.
    seed
        Same arguments, same graph, bit for bit.

    Raises
    ------
    ValueError
        If a number is negative, there are no entities or relations, or the patterns cannot hold
        that many distinct triples.

    Examples
    --------
    >>> synthetic(200, 6, 500, 50, 50)
    SyntheticDataset synthetic: 200 entities, 6 relations
    split     triples   entities  relations
    train         500        197          6
    valid          50         70          6
    test           50         67          4
    """
    _check_counts(num_entities, num_relations, num_train, num_valid, num_test, seed)
    num_triples = num_train + num_valid + num_test
    rng = np.random.default_rng(seed)
    catalogue = _catalogue(num_relations)
    growth = _grow(catalogue, num_entities, num_triples, rng)
    hrt = _triples(growth, num_triples, rng)
    hrt[:, ::2] = growth.id[hrt[:, ::2]]
    hrt = rng.permutation(hrt)
    digits = len(str(num_entities - 1))
    entities = Vocabulary(f"entity_{i:0{digits}}" for i in range(num_entities))
    relations = Vocabulary(relation.name for relation in catalogue)
    train, valid, test = (
        Triples(np.ascontiguousarray(part), entities=entities, relations=relations)
        for part in np.split(hrt, [num_train, num_train + num_valid])
    )
    return SyntheticDataset("synthetic", train, valid, test, entities, relations, seed, growth)


def _check_counts(
    num_entities: int, num_relations: int, num_train: int, num_valid: int, num_test: int, seed: int
) -> None:
    for name, value, least in (
        ("num_entities", num_entities, 1),
        ("num_relations", num_relations, 1),
        ("num_train", num_train, 0),
        ("num_valid", num_valid, 0),
        ("num_test", num_test, 0),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def _catalogue(num_relations: int) -> list[_Relation]:
    relations = [_Relation("child_of", "tree", 0)]
    cycle = 0
    while len(relations) < num_relations:
        then = "child_of" if cycle == 0 else f"has_part_{cycle - 1}"
        relations += [
            _Relation(f"sibling_{cycle}", "sibling", cycle),
            _Relation(f"symmetric_{cycle}", "symmetric", cycle),
            _Relation(f"has_part_{cycle}", "whole", cycle),
            _Relation(f"part_of_{cycle}", "part", cycle),
            _Relation(_THEN + then, "composed", cycle),
        ]
        cycle += 1
    return relations[:num_relations]


def _ids(relations: list[_Relation], *kinds: _Kind) -> list[int]:
    return [i for i, relation in enumerate(relations) if relation.kind in kinds]


def _grow(
    relations: list[_Relation], num_entities: int, num_triples: int, rng: np.random.Generator
) -> _Growth:
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
    return _Growth(
        relations,
        num_primaries,
        parent,
        link,
        upward=link == 0,
        level=_levels(parent),
        correlation=_correlations(num_entities, rng),
        id=rng.permutation(num_entities),
    )


def _forest(size: int, rng: np.random.Generator) -> _Ints:
    """Return the parent of each entity, an earlier one, -1 for roots."""
    num_roots = max(1, size // 500)
    order = np.arange(size)
    pool = np.maximum(num_roots, order // 4)
    parent = (rng.random(size) ** 1.5 * pool).astype(np.int64)
    parent[:num_roots] = -1
    return parent


def _shuffled(
    ids: list[int], weights: npt.NDArray[np.float64], size: int, rng: np.random.Generator
) -> _Ints:
    """Return `size` of the relations in random order, each as often as its weight says."""
    if not ids:
        return np.empty(0, np.int64)
    edges = np.cumsum(weights[ids]) / weights[ids].sum()
    positions = (np.arange(size) + 0.5) / max(size, 1)
    chosen = np.searchsorted(edges, positions).clip(max=len(ids) - 1)
    return rng.permutation(np.array(ids, np.int64)[chosen])


def _levels(parent: _Ints) -> _Ints:
    level = np.zeros(len(parent), np.int64)
    while True:
        deeper = np.where(parent >= 0, level[parent] + 1, 0)
        if np.array_equal(deeper, level):
            return level
        level = deeper


def _correlations(size: int, rng: np.random.Generator) -> _Floats:
    hopeless = rng.random(size) < _HOPELESS
    spread = rng.random(size)
    return np.where(hopeless, 0.15 * spread, np.sqrt(0.3 + 0.68 * spread)).astype(np.float32)


def _triples(growth: _Growth, num_triples: int, rng: np.random.Generator) -> _Ints:
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


def _links(growth: _Growth) -> _Ints:
    """Return rows (entity, parent, relation), also those that twins take over; early ones first."""
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


def _split_links(links: _Ints, relations: list[_Relation], most: int) -> tuple[_Ints, _Ints]:
    """Return the first links, as many as state at most `most` triples, and the others."""
    num_stated = np.ones(len(relations), np.int64)
    num_stated[_ids(relations, "symmetric")] = 2
    num_stated[[r - 1 for r in _ids(relations, "part")]] = 2
    count = int(np.searchsorted(np.cumsum(num_stated[links[:, 2]]), most, side="right"))
    return links[:count], links[count:]


def _stated(links: _Ints, relations: list[_Relation]) -> _Ints:
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
    grown: _Ints, growth: _Growth, fillers: list[int], total: int, rng: np.random.Generator
) -> list[_Ints]:
    """Return `total` triples of the compositions and sibling relations, fewer if there are not."""
    relations = growth.relations
    names = {relation.name: i for i, relation in enumerate(relations)}
    children = grown[grown[:, 1] == 0][:, ::2]  # (child, parent): every child has one
    num_children = np.bincount(children[:, 1], minlength=len(growth.parent))
    pools: dict[int, _Ints] = {}
    capacities = []
    for r in fillers:
        capacity = int((num_children * (num_children - 1)).sum())
        if relations[r].kind == "composed":
            then = grown[grown[:, 1] == names[relations[r].name.removeprefix(_THEN)]][:, ::2]
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
    """Share `total` out by weight; what one cannot hold goes to the others."""
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


def _compositions(first: _Ints, then: _Ints, priority: _Ints) -> _Ints:
    """Return all (x, z) with (x, y) in `first` and (y, z) in `then`, in order of priority[y]."""
    first = first[np.argsort(priority[first[:, 1]], kind="stable")]
    then = then[np.argsort(then[:, 0], kind="stable")]
    start = np.searchsorted(then[:, 0], first[:, 1])
    count = np.searchsorted(then[:, 0], first[:, 1], side="right") - start
    return np.stack([np.repeat(first[:, 0], count), then[_ranges(start, count), 1]], axis=1)


def _siblings(children: _Ints, num_children: _Ints, size: int, rng: np.random.Generator) -> _Ints:
    """Return at least `size` pairs of siblings: small cliques, one family after the other."""
    clique = 4
    while (np.minimum(num_children, clique) * (np.minimum(num_children, clique) - 1)).sum() < size:
        clique *= 2
    children = rng.permutation(children)
    children = children[np.argsort(rng.permutation(len(num_children))[children[:, 1]])]
    start = np.flatnonzero(np.diff(children[:, 1], prepend=-1))
    family_size = np.diff(np.append(start, len(children)))
    place = np.arange(len(children)) - np.repeat(start, family_size)
    count = np.where(place < clique, place, 0)  # each pairs with those before it in its family
    younger = np.repeat(children[:, 0], count)
    older = children[_ranges(np.repeat(start, family_size), count), 0]
    both = np.stack([younger, older, older, younger], axis=1)
    return both.reshape(-1, 2)


def _ranges(start: _Ints, count: _Ints) -> _Ints:
    """Concatenate the ranges start[i]..start[i] + count[i] - 1."""
    shift = np.repeat(start - np.cumsum(count) + count, count)
    return shift + np.arange(len(shift))


def _planted_phases(relations: list[_Relation], rng: np.random.Generator) -> _Floats:
    """Return the phases of one block `[R, 64]`."""
    names = {relation.name: i for i, relation in enumerate(relations)}
    phase = np.zeros((len(relations), _BLOCK), np.float32)
    for i, relation in enumerate(relations):
        uniform = rng.random(_BLOCK, dtype=np.float32)
        if relation.kind in ("tree", "whole"):
            phase[i] = (2 * uniform - 1) * np.float32(np.pi)
        elif relation.kind == "symmetric":
            phase[i] = np.where(uniform < 0.5, np.float32(0), np.float32(np.pi))
        elif relation.kind == "part":
            phase[i] = -phase[i - 1]
        elif relation.kind == "composed":
            then = relation.name.removeprefix(_THEN)
            total = phase[0].astype(np.float64) + phase[names[then]]
            phase[i] = np.remainder(total + np.pi, 2 * np.pi) - np.pi
    return phase


def _planted_entities(
    growth: _Growth, phase: _Floats, rng: np.random.Generator
) -> tuple[_Floats, _Floats]:
    """Return real and imaginary parts of one block `[N, 64]`, in growth order."""
    size = (len(growth.parent), _BLOCK)
    re = rng.standard_normal(size, dtype=np.float32)
    im = rng.standard_normal(size, dtype=np.float32)
    re *= np.float32(_SCALE)
    im *= np.float32(_SCALE)
    cosine = np.cos(phase.astype(np.float64)).astype(np.float32)
    sine = np.sin(phase.astype(np.float64)).astype(np.float32)
    for level in range(1, int(growth.level.max(initial=0)) + 1):
        at = np.flatnonzero(growth.level == level)
        parent, link = growth.parent[at], growth.link[at]
        kept = growth.correlation[at, None]
        fresh = np.sqrt(1 - kept * kept)
        turn_re = cosine[link]
        # A link that leads upward turns the entity into its parent: the parent is turned back.
        turn_im = np.where(growth.upward[at, None], -sine[link], sine[link])
        re_parent, im_parent = re[parent], im[parent]
        re[at] = kept * (re_parent * turn_re - im_parent * turn_im) + fresh * re[at]
        im[at] = kept * (re_parent * turn_im + im_parent * turn_re) + fresh * im[at]
    return re, im
