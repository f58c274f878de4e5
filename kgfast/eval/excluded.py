"""Ids that are no answers to queries: the argument ``exclude`` of rank(), topk() and above()."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from kgfast.eval.candidates import checked_ids_of
from kgfast.graph import IdsLike, Names, as_integers
from kgfast.kernels.operands import Known
from kgfast.models.base import SIDES, Side
from kgfast.text import shown

ExcludedIds = IdsLike | tuple[Tensor | npt.NDArray[Any], Tensor | npt.NDArray[Any]]
_OWNER = 32  # bits of an id


@dataclass(frozen=True)
class Excluded:
    """Ids that queries leave out, on the host, as CSR; for all queries without ``indptr``."""

    ids: Tensor
    indptr: Tensor | None = None

    @classmethod
    def of(cls, value: Any, side: Side, anchors: Tensor, model: Any, names: Names) -> "Excluded":
        """Check the argument ``exclude`` of queries of a side with these anchors ``[B]``."""
        if isinstance(value, str):
            if value != "anchor" or side == "relation":
                raise ValueError(
                    'exclude must be ids, a pair (indptr, ids), or "anchor" where entities are '
                    f"predicted; got {shown(value)}"
                )
            every = torch.arange(len(anchors) + 1, dtype=torch.int64, device="cpu")
            return cls(anchors.cpu(), every)
        is_relation = side == "relation"
        rows = model.num_relations if is_relation else model.num_entities, names[is_relation]
        return cls.listed("exclude", value, len(anchors), rows)

    @classmethod
    def listed(cls, name: str, value: Any, count: int, rows: tuple[int, Any]) -> "Excluded":
        """Check ids for all of ``count`` queries, or CSR; ``rows`` are their number and names."""
        kinds = Tensor | np.ndarray
        if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], kinds)):
            return cls(checked_ids_of(name, value, *rows).reshape(-1).cpu())
        indptr = as_integers(f"{name}: indptr", value[0]).cpu()
        ids = checked_ids_of(f"{name}: ids", value[1], *rows).reshape(-1).cpu()
        is_csr = indptr.shape == (count + 1,) and not bool((indptr.diff() < 0).any())
        if not is_csr or (int(indptr[0]), int(indptr[-1])) != (0, len(ids)):
            raise ValueError(
                f"{name}: indptr must have shape [{count + 1}], and rise from 0 to the number of "
                f"ids, {len(ids)}; got shape {list(indptr.shape)}"
            )
        return cls(ids, indptr)

    def joined(
        self, known: Known | None, rows: Tensor, home: torch.device, within: tuple[int, int] | None
    ) -> Known:
        """Return known answers and excluded ids of the queries in ``rows``, on a device.

        The ids of a query ascend, each once. Only excluded ids ``within`` a range are joined.
        """
        if self.indptr is None:
            counts, ids = torch.full_like(rows, len(self.ids)), self.ids.repeat(len(rows))
        else:
            starts, ends = self.indptr[rows], self.indptr[rows + 1]
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            counts = ends - starts
            ids = torch.cat([self.ids[:0], *(self.ids[start:end] for start, end in spans)])
        keys = (torch.repeat_interleave(counts, output_size=len(ids)) << _OWNER) | ids
        if within is not None:
            keys = keys[(ids >= within[0]) & (ids < within[1])]
        keys = keys.to(home)
        if known is not None:
            owners = torch.repeat_interleave(known.indptr.diff(), output_size=len(known.indices))
            keys = torch.cat([(owners << _OWNER) | known.indices, keys])
        keys = keys.unique()
        counts = (keys >> _OWNER).bincount(minlength=len(rows))
        return Known(pad(counts.cumsum(0), (1, 0)), keys & ((1 << _OWNER) - 1))


def excluded_of_sides(
    value: Any, sides: Sequence[Side], hrt: Tensor, model: Any, names: Names
) -> dict[Side, Excluded]:
    """Check the argument ``exclude`` of triples ``[T, 3]``; relations leave out nothing."""
    of_sides = value if isinstance(value, Mapping) else dict.fromkeys(SIDES, value)
    if not of_sides.keys() <= set(SIDES):
        raise ValueError(f"exclude must be of 'head' and 'tail'; got {shown(list(of_sides))}")
    return {
        side: Excluded.of(of_sides[side], side, hrt[:, 0 if side == "tail" else 2], model, names)
        for side in sides
        if of_sides.get(side) is not None
    }
