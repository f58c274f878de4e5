"""A synthetic graph that needs no download, and the RotatE embeddings behind it.

The graph is grown, not sampled. So relations have the patterns that RotatE can express, and ranks
mean something without training:

1. *Primaries* form a forest. Entity i hangs below an earlier entity, by `child_of` or as a part
   (`has_part_k`, and its inverse `part_of_k`). Parents come from the first quarter of the entities
   before i, early ones more often, so family sizes are skewed.
2. The first primaries have a *twin* each, by `symmetric_k`, in both directions. If an entity and
   its parent have twins by the same relation, the twins are linked like their originals.
3. `child_of_then_child_of` and `child_of_then_has_part_k` are compositions of those triples.
4. `sibling_k` joins up to a few children of one parent, each with each, in both directions.

The graph has all triples of 1 and 2, unless fewer are wanted; 3 and 4 fill the graph up to the
exact number. Every embedding is the parent's embedding, rotated backwards along the link, plus
noise. The correlation of an entity with the rotated parent is drawn per entity, from near 0
(hopeless) to near 1 (easy).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgfast.datasets.dataset import Dataset
from kgfast.graph import Triples, Vocabulary
from kgfast.kernels.reference.trig import cos_sin

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float32]

# Shares of the triples, like WN18RR's: two relations hold most, all others little.
_WEIGHTS = {
    "tree": 0.38,
    "symmetric": 0.32,
    "whole": 0.06,
    "part": 0.06,
    "composed": 0.06,
    "sibling": 0.06,
}
_HOPELESS = 0.25  # share of entities with nearly no correlation to the parent
# dimensions that share a random stream: the prefix of a planting is the smaller planting
_BLOCK = 64
_SCALE = 0.02  # standard deviation of components, as in trained RotatE entities at gamma = 12


class _Relation(NamedTuple):
    name: str
    kind: str  # a key of _WEIGHTS
    weight: float  # later relations of a kind get fewer triples
    then: int  # the relation that a composition takes after `child_of`


@dataclass(frozen=True, eq=False)
class Growth:
    """Parent and link of each entity in growth order: parents before children."""

    relations: list[_Relation]
    num_primaries: int  # twins come after the primaries, in the order of the originals
    parent: _Ints  # [N], -1 for roots
    link: _Ints  # [N], the relation of the link; 0 leads from the entity to the parent
    correlation: _Floats  # [N], with the rotated parent
    id: _Ints  # [N], the entity's id in the graph

    def of_kind(self, *kinds: str) -> list[int]:
        return [i for i, relation in enumerate(self.relations) if relation.kind in kinds]


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticDataset(Dataset):
    """Synthetic graph with known embeddings; made by `synthetic`."""

    seed: int
    growth: Growth

    def planted(self, dim: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the RotatE embeddings behind the graph: t is near h * exp(i * phase[r]).

        Roots are complex normal with a standard deviation of 0.02 per component. Every other entity
        is `c * rotated parent + sqrt(1 - c**2) * noise`, with a correlation c of its own. Phases
        are uniform for `child_of` and `has_part_k`, negated for the inverse `part_of_k`, 0 or pi
        for `symmetric_k`, 0 for `sibling_k`, and sums for compositions.

        Parameters
        ----------
        dim
            Complex dimensions, at least 1. The first d of a larger planting are the planting of dim
            d, bit for bit.
        seed
            Another seed gives other embeddings of this graph; by default the seed of the graph.

        Returns
        -------
        entity
            float32 `[num_entities, 2 * dim]`, halves: re | im.
        phase
            float32 `[num_relations, dim]`, in -pi..pi.
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

    The default has the sizes of WN18RR and about the same skew. The module's docstring describes
    the growth; `SyntheticDataset.planted` gives the embeddings.

    Relations come in the order `child_of`, `sibling_0`, `symmetric_0`, `has_part_0`, `part_of_0`,
    `child_of_then_child_of`, `sibling_1`, ... All triples are distinct. Equal arguments give equal
    graphs, bit for bit, on every processor, with one version of numpy.

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
    valid          50         69          6
    test           50         65          4
    """
    counts = {"num_entities": num_entities - 1, "num_relations": num_relations - 1}
    counts |= {"num_train": num_train, "num_valid": num_valid, "num_test": num_test, "seed": seed}
    for name, above_least in counts.items():
        if above_least < 0:
            least = int(name in ("num_entities", "num_relations"))
            raise ValueError(f"{name} must be >= {least}, got {above_least + least}")
    num_triples = num_train + num_valid + num_test
    rng = np.random.default_rng(seed)
    growth = _grow(_catalogue(num_relations), num_entities, num_triples, rng)
    hrt = _draw_triples(growth, num_triples, rng)
    hrt[:, ::2] = growth.id[hrt[:, ::2]]
    hrt = rng.permutation(hrt)
    digits = len(str(num_entities - 1))
    entities = Vocabulary(f"entity_{i:0{digits}}" for i in range(num_entities))
    relations = Vocabulary(relation.name for relation in growth.relations)
    train, valid, test = (
        Triples(np.ascontiguousarray(split), entities=entities, relations=relations)
        for split in np.split(hrt, [num_train, num_train + num_valid])
    )
    return SyntheticDataset("synthetic", train, valid, test, entities, relations, seed, growth)


def _catalogue(num_relations: int) -> list[_Relation]:
    relations = [_Relation("child_of", "tree", _WEIGHTS["tree"], 0)]
    for cycle in range(num_relations // 5 + 1):
        then = max(0, len(relations) - 3)  # `has_part` of the cycle before, else `child_of`
        kinds = {
            f"sibling_{cycle}": "sibling",
            f"symmetric_{cycle}": "symmetric",
            f"has_part_{cycle}": "whole",
            f"part_of_{cycle}": "part",
            f"child_of_then_{relations[then].name}": "composed",
        }
        relations += [
            _Relation(name, kind, _WEIGHTS[kind] / (1 + cycle) ** 2, then)
            for name, kind in kinds.items()
        ]
    return relations[:num_relations]


def _grow(
    relations: list[_Relation], num_entities: int, num_triples: int, rng: np.random.Generator
) -> Growth:
    """Grow a forest of primaries and twins."""
    kinds = [relation.kind for relation in relations]
    weights = np.array([relation.weight for relation in relations])
    symmetric = np.flatnonzero(np.isin(kinds, ["symmetric"]))
    trees = np.flatnonzero(np.isin(kinds, ["tree", "whole"]))
    share = weights[symmetric].sum() / weights.sum()
    num_twins = int(min(num_triples * share / 2, 0.37 * num_entities))
    num_primaries = num_entities - num_twins
    num_roots = max(1, num_primaries // 500)
    pool = np.maximum(num_roots, np.arange(num_primaries) // 4)
    # a square root is rounded alike on every processor, a power is not
    drawn = rng.random(num_primaries)
    parent = (drawn * np.sqrt(drawn) * pool).astype(np.int64)
    parent[:num_roots] = -1
    link = np.zeros(num_entities, np.int64)
    grown = np.flatnonzero(parent >= 0)
    link[grown] = _shuffled(trees, weights, len(grown), rng)
    link[num_primaries:] = _shuffled(symmetric, weights, num_twins, rng)
    parent = np.append(parent, np.arange(num_twins))
    hopeless, spread = rng.random(num_entities) < _HOPELESS, rng.random(num_entities)
    correlation = np.where(hopeless, 0.15 * spread, np.sqrt(0.3 + 0.68 * spread))
    id = rng.permutation(num_entities)
    return Growth(relations, num_primaries, parent, link, correlation.astype(np.float32), id)


def _shuffled(
    ids: _Ints, weights: NDArray[np.float64], size: int, rng: np.random.Generator
) -> _Ints:
    """Return `size` relations in random order, each in proportion to its weight."""
    edges = np.cumsum(weights[ids]) / weights[ids].sum()
    positions = (np.arange(size) + 0.5) / size
    chosen = np.searchsorted(edges, positions).clip(max=len(ids) - 1)
    return rng.permutation(ids[chosen])


def _draw_triples(growth: Growth, num_triples: int, rng: np.random.Generator) -> _Ints:
    """Return the graph's triples `[T, 3]`, in growth order ids."""
    relations = growth.relations
    weights = np.array([relation.weight for relation in relations])
    fillers = growth.of_kind("composed", "sibling")
    links = _links(growth)
    # the first links state as many triples as links should; others stand in for missing fillers
    num_stated = np.ones(len(relations), np.int64)
    num_stated[growth.of_kind("symmetric")] = 2
    num_stated[[r - 1 for r in growth.of_kind("part")]] = 2
    most = round(num_triples * (1 - weights[fillers].sum() / weights.sum()))
    count = int(np.searchsorted(np.cumsum(num_stated[links[:, 2]]), most, side="right"))
    grown = _stated(links[:count], growth)
    filled = _fillers(grown, growth, fillers, num_triples - len(grown), rng)
    hrt = np.concatenate([grown, *filled, _stated(links[count:], growth)])
    if len(hrt) < num_triples:
        raise ValueError(
            f"{num_triples:,} triples are too many: the patterns of {len(relations):,} relations "
            f"on {len(growth.parent):,} entities hold {len(hrt):,}"
        )
    return hrt[:num_triples]


def _links(growth: Growth) -> _Ints:
    """Return rows (entity, parent, relation), early ones first, and the links of twins."""
    first_twin = growth.num_primaries
    entity = np.flatnonzero(growth.parent >= 0)
    links = np.stack([entity, growth.parent[entity], growth.link[entity]], axis=1)
    copied = links[(links[:, :2] + first_twin < len(growth.parent)).all(axis=1)]
    twins = copied[:, :2] + first_twin
    same = growth.link[twins[:, 0]] == growth.link[twins[:, 1]]
    copied = np.concatenate([twins, copied[:, 2:]], axis=1)[same]
    links = np.concatenate([links, copied])
    return links[np.argsort(links[:, 0] % first_twin, kind="stable")]


def _stated(links: _Ints, growth: Growth) -> _Ints:
    """Return the triples that links stand for `[T, 3]`."""
    entity, parent, relation = links.T
    upward = np.stack([entity, relation, parent], axis=1)
    downward = np.stack([parent, relation, entity], axis=1)
    has_inverse = np.isin(relation + 1, growth.of_kind("part"))
    return np.concatenate(
        [
            upward[np.isin(relation, growth.of_kind("tree", "symmetric"))],
            downward[np.isin(relation, growth.of_kind("symmetric", "whole"))],
            (upward + np.array([0, 1, 0]))[has_inverse],
        ]
    )


def _fillers(
    grown: _Ints, growth: Growth, fillers: list[int], total: int, rng: np.random.Generator
) -> list[_Ints]:
    """Return up to `total` triples of the compositions and sibling relations."""
    relations = growth.relations
    children = grown[grown[:, 1] == 0][:, ::2]  # (child, parent): every child has one
    num_children = np.bincount(children[:, 1], minlength=len(growth.parent))
    pools: dict[int, _Ints] = {}
    room = dict.fromkeys(fillers, int((num_children * (num_children - 1)).sum()))
    for r in fillers:
        if relations[r].kind == "composed":
            then = grown[grown[:, 1] == relations[r].then][:, ::2]
            pools[r] = _compositions(children, then, rng.permutation(len(growth.parent)))
            room[r] = len(pools[r])
    triples = []
    for r, size in _apportioned(total, growth, room).items():
        if r not in pools:
            pools[r] = _siblings(children, num_children, size, rng)
        heads, tails = pools[r][:size].T
        triples.append(np.stack([heads, np.full(size, r), tails], axis=1))
    return triples


def _apportioned(total: int, growth: Growth, room: dict[int, int]) -> dict[int, int]:
    """Share `total` out by weight; the rest of a full relation goes to other relations."""
    sizes = dict.fromkeys(room, 0)
    while (left := total - sum(sizes.values())) > 0:
        open_ones = [r for r in sizes if sizes[r] < room[r]]
        sum_of_weights = sum(growth.relations[r].weight for r in open_ones)
        for r in open_ones:
            share = max(1, int(left * growth.relations[r].weight / sum_of_weights))
            sizes[r] += min(share, room[r] - sizes[r], total - sum(sizes.values()))
        if not open_ones:
            break
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
    return np.stack([younger, older, older, younger], axis=1).reshape(-1, 2)


def _ranges(start: _Ints, count: _Ints) -> _Ints:
    """Concatenate the ranges start[i]..start[i] + count[i] - 1."""
    shift = np.repeat(start - np.cumsum(count) + count, count)
    return shift + np.arange(len(shift))


def _planted_phases(relations: list[_Relation], rng: np.random.Generator) -> _Floats:
    """Return the phases of one block `[R, 64]`."""
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
            total = phase[0].astype(np.float64) + phase[relation.then]
            phase[i] = np.remainder(total + np.pi, 2 * np.pi) - np.pi
    return phase


def _planted_entities(
    growth: Growth, phase: _Floats, rng: np.random.Generator
) -> tuple[_Floats, _Floats]:
    """Return real and imaginary parts of one block `[N, 64]`, in growth order."""
    size = (len(growth.parent), _BLOCK)
    re = rng.standard_normal(size, dtype=np.float32) * np.float32(_SCALE)
    im = rng.standard_normal(size, dtype=np.float32) * np.float32(_SCALE)
    # unlike numpy's, these have equal bits on every processor
    cosine, sine = (values.float().numpy() for values in cos_sin(torch.from_numpy(phase).double()))
    sine[0] *= -1  # a link of `child_of` turns the entity into the parent, which is turned back
    for at in _levels(growth.parent):
        kept = growth.correlation[at, None]
        fresh = np.sqrt(1 - kept * kept)
        turn_re, turn_im = cosine[growth.link[at]], sine[growth.link[at]]
        re_parent, im_parent = re[growth.parent[at]], im[growth.parent[at]]
        re[at] = kept * (re_parent * turn_re - im_parent * turn_im) + fresh * re[at]
        im[at] = kept * (re_parent * turn_im + im_parent * turn_re) + fresh * im[at]
    return re, im


def _levels(parent: _Ints) -> Iterator[_Ints]:
    """Yield the entities whose parents were yielded before, or are roots."""
    done = parent < 0
    while not done.all():
        level = np.flatnonzero(~done & done[parent])
        yield level
        done[level] = True
