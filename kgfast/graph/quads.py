"""Names of temporal graphs, where a quad (h, r, t, time) is a triple of a pair (r, time)."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from kgfast.graph.triples import Vocabulary
from kgfast.text import shown

_BETWEEN = " @ "


class TimedRelations(Vocabulary):
    """Names of pairs of a relation and a time; a pair has the id ``relation * num_times + time``.

    Names of pairs, such as ``Make a visit @ 2014-01-02``, are not stored.

    Parameters
    ----------
    relations, times : Vocabulary
        Names of the relations, and of the times in their order.

    Examples
    --------
    >>> pairs = TimedRelations(Vocabulary(["visits"]), Vocabulary(["2014-01-01", "2014-01-02"]))
    >>> pairs.name(1), pairs["visits @ 2014-01-01"], len(pairs)
    ('visits @ 2014-01-02', 0, 2)
    """

    __slots__ = ("columns", "num_times")
    num_times: int

    def __init__(self, relations: Vocabulary, times: Vocabulary) -> None:
        self.labels, self.num_times = relations.labels, len(times)
        self.columns = relations, times  # type: ignore[misc]

    def labelled(self, labels: Mapping[str, str]) -> "TimedRelations":
        return TimedRelations(self.columns[0].labelled(labels), self.columns[1])

    def name(self, id: int) -> str:
        places = divmod(id, self.num_times)
        return _BETWEEN.join(of.name(id) for of, id in zip(self.columns, places, strict=True))

    def label(self, id: int) -> str | None:
        return self.columns[0].label(id // self.num_times)

    def ids(self, names: Iterable[str]) -> Tensor:
        return torch.tensor([self[name] for name in names], dtype=torch.int64, device="cpu")

    def __getitem__(self, name: str) -> int:
        relation, between, time = name.rpartition(_BETWEEN)
        if not between:
            raise ValueError(f"{shown(name)} must be a relation and a time: 'relation @ time'")
        return self.columns[0][relation] * self.num_times + self.columns[1][time]

    def __contains__(self, name: object) -> bool:
        parts = str(name).rpartition(_BETWEEN)[::2]
        return all(part in of for part, of in zip(parts, self.columns, strict=True))

    def __iter__(self) -> Iterator[str]:
        return map(self.name, range(len(self)))

    def __len__(self) -> int:
        return len(self.columns[0]) * self.num_times

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimedRelations) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        return f"TimedRelations{self.columns}"
