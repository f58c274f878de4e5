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

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.dataset import Dataset
from kgfast.datasets.growth import (
    THEN,
    Floats,
    Growth,
    Relation,
    draw_triples,
    grow,
    relation_catalogue,
)
from kgfast.graph import Triples, Vocabulary
from kgfast.kernels.reference.trig import cos_sin

# dimensions that share a random stream: the prefix of a planting is the smaller planting
_BLOCK = 64
_SCALE = 0.02  # standard deviation of components, as in trained RotatE entities at gamma = 12


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticDataset(Dataset):
    """Synthetic graph with known embeddings; made by `synthetic`."""

    seed: int
    growth: Growth

    def planted(self, dim: int, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the RotatE embeddings behind the graph: t is near h * exp(i * phase[r]).

        Roots are complex normal with a standard deviation of 0.02 per component. Every other entity
        is `c * rotated parent + sqrt(1 - c**2) * noise`. Each entity has a correlation c, which
        does not depend on dim. Phases are uniform for `child_of` and `has_part_k`, negated for the
        inverse `part_of_k`, 0 or pi for `symmetric_k`, 0 for `sibling_k`, and sums for
        compositions.

        Parameters
        ----------
        dim
            Complex dimensions. The first d of a larger planting are the planting of dim d, bit for
            bit.
        seed
            Another seed gives other embeddings of this graph; by default the seed of the graph.

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

    The default has the sizes of WN18RR and about the same skew. The module's docstring describes
    the growth; `SyntheticDataset.planted` gives the embeddings.

    Parameters
    ----------
    num_entities, num_relations
        Sizes of the vocabularies. Relations come in the order `child_of`, `sibling_0`,
        `symmetric_0`, `has_part_0`, `part_of_0`, `child_of_then_child_of`, `sibling_1`, ...
    num_train, num_valid, num_test
        Numbers of triples: exact, and all triples are distinct.
    seed
        Equal arguments give equal graphs, bit for bit, on every processor. Another version of
        numpy may draw another graph.

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
    _check_counts(num_entities, num_relations, num_train, num_valid, num_test, seed)
    num_triples = num_train + num_valid + num_test
    rng = np.random.default_rng(seed)
    catalogue = relation_catalogue(num_relations)
    growth = grow(catalogue, num_entities, num_triples, rng)
    hrt = draw_triples(growth, num_triples, rng)
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


def _planted_phases(relations: list[Relation], rng: np.random.Generator) -> Floats:
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
            then = relation.name.removeprefix(THEN)
            total = phase[0].astype(np.float64) + phase[names[then]]
            phase[i] = np.remainder(total + np.pi, 2 * np.pi) - np.pi
    return phase


def _planted_entities(
    growth: Growth, phase: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return real and imaginary parts of one block `[N, 64]`, in growth order."""
    size = (len(growth.parent), _BLOCK)
    re = rng.standard_normal(size, dtype=np.float32)
    im = rng.standard_normal(size, dtype=np.float32)
    re *= np.float32(_SCALE)
    im *= np.float32(_SCALE)
    # unlike numpy's, these have equal bits on every processor
    cosine, sine = (it.float().numpy() for it in cos_sin(torch.from_numpy(phase).double()))
    for level in range(1, int(growth.level.max(initial=0)) + 1):
        at = np.flatnonzero(growth.level == level)
        parent, link = growth.parent[at], growth.link[at]
        kept = growth.correlation[at, None]
        fresh = np.sqrt(1 - kept * kept)
        turn_re = cosine[link]
        # A link that leads upward turns the entity into the parent, so the parent is turned back.
        turn_im = np.where(growth.upward[at, None], -sine[link], sine[link])
        re_parent, im_parent = re[parent], im[parent]
        re[at] = kept * (re_parent * turn_re - im_parent * turn_im) + fresh * re[at]
        im[at] = kept * (re_parent * turn_im + im_parent * turn_re) + fresh * im[at]
    return re, im
