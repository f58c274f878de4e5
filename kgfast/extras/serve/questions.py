"""Questions of clients: JSON becomes checked ids, or an error that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from kgfast.extras.serve.bodies import ROLES, RankBody, ScoreBody, TopkBody
from kgfast.extras.serve.limits import Limits
from kgfast.extras.serve.refusals import Refused, UnknownName
from kgfast.graph import Names, Vocabulary
from kgfast.models import Side
from kgfast.text import shown


@dataclass(frozen=True)
class Question:
    """Request as ids."""

    kind: Literal["topk", "rank", "score"]
    columns: tuple[list[int], ...]  # for topk: anchors, others; else heads, relations, tails
    sides: tuple[Side, ...] = ()  # sides that are predicted, or ranked
    include_known: bool = False  # known triples are candidates, too
    k: int = 0  # answers to a query
    exclude: Sequence[list[int]] = ()  # ids that are no answers to each query; empty: none
    candidates: Sequence[list[int]] | None = None  # distinct ids of each query; None: not listed
    types: bool = False  # candidates are those of the relation

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key that questions of one call share."""
        return self.kind, self.sides, self.include_known, self.candidates is None, self.types

    def __len__(self) -> int:
        """Return the number of queries, or triples."""
        return len(self.columns[0])

    def part(self, start: int, stop: int) -> Self:
        """Return the question for some of the queries."""
        columns = tuple(column[start:stop] for column in self.columns)
        candidates = None if self.candidates is None else self.candidates[start:stop]
        exclude = self.exclude[start:stop]
        return replace(self, columns=columns, exclude=exclude, candidates=candidates)


@dataclass(frozen=True)
class Reader:
    """Parser of request bodies for one model."""

    sizes: tuple[int, int]  # entities, relations
    names: Names
    limits: Limits
    has_types: bool = False  # candidates of each relation

    def topk(self, body: bytes) -> Question:
        """Parse ``POST /topk``."""
        asked = TopkBody.of(body, self.limits)
        given = {role: getattr(asked, role) for role in ROLES if getattr(asked, role) is not None}
        side = _predicted(given)
        columns = self._columns(given)
        if side == "head":  # anchors are the tails
            columns = columns[::-1]
        most = min(self.limits.k, self.limits.answers // len(columns[0]))
        k = asked.k if "k" in asked.model_fields_set else min(asked.k, self.limits.k)
        if k > most:
            queries = len(columns[0])
            raise Refused(
                422, f"must be in 1 .. {most} for {queries:,} queries; got {shown(k)}", "k"
            )
        there = self.sizes[1 if side == "relation" else 0]
        return Question(
            "topk",
            columns,
            (side,),
            asked.include_known,
            min(k, there),
            self._excluded(asked.exclude, columns[0], side),
            **self._restricted(asked.candidates, len(columns[0]), (side,)),
        )

    def rank(self, body: bytes) -> Question:
        """Parse ``POST /rank``."""
        asked = RankBody.of(body, self.limits)
        columns, sides = self._triples(asked), tuple(asked.sides)
        if asked.candidates is not None and "relation" in sides:
            raise Refused(422, "are entities, and relations are ranked too", "candidates")
        restricted = self._restricted(asked.candidates, len(columns[0]), sides)
        return Question("rank", columns, sides, asked.include_known, **restricted)

    def score(self, body: bytes) -> Question:
        """Parse ``POST /score``."""
        return Question("score", self._triples(ScoreBody.of(body, self.limits)))

    def _triples(self, asked: ScoreBody) -> tuple[list[int], ...]:
        return self._columns({role: getattr(asked, role) for role in ROLES})

    def _columns(self, given: dict[str, list[int | str]]) -> tuple[list[int], ...]:
        """Return ids of one length, in the order (h, r, t)."""
        length, longest = max((len(entries), role) for role, entries in given.items())
        for role, entries in given.items():
            if len(entries) not in (1, length):
                raise Refused(
                    422,
                    f"has {len(entries):,} entries, {longest} has {length:,}: either one for all "
                    f"or one for each",
                    role,
                )
        columns = (
            self._ids_of(role, entries, 1 if role == "relations" else 0)
            for role, entries in given.items()
        )
        return tuple(ids * length if len(ids) == 1 else ids for ids in columns)

    def _ids_of(self, field: str, entries: list[int | str], place: int) -> list[int]:
        """Return ids of entities (place 0) or relations (place 1)."""
        names, count = self.names[place], self.sizes[place]
        return [_id(field, row, entry, names, count) for row, entry in enumerate(entries)]

    def _excluded(self, given: Any, anchors: list[int], side: Side) -> Sequence[list[int]]:
        """Return the ids that each query leaves out."""
        if given == "anchor" and side == "relation":
            raise Refused(422, '"anchor" leaves entities out; relations are predicted', "exclude")
        if given == "anchor":
            return [[anchor] for anchor in anchors]
        return self._lists("exclude", given, len(anchors), side) if given else ()

    def _restricted(self, given: Any, count: int, sides: tuple[Side, ...]) -> dict[str, Any]:
        """Return the fields of a question that restrict candidates."""
        if given is None:
            return {}
        if given != "types":
            lists = self._lists("candidates", given, count, sides[0])
            return {"candidates": [list(dict.fromkeys(ids)) for ids in lists]}
        if "relation" in sides:
            raise Refused(422, '"types" restrict entities; relations are predicted', "candidates")
        if not self.has_types:
            raise Refused(
                422, "the server has no types: kgfast serve --types sets types", "candidates"
            )
        return {"types": True}

    def _lists(self, field: str, given: list[Any], count: int, side: Side) -> list[list[int]]:
        """Return the ids of one list for all queries, or of a list for each."""
        place = 1 if side == "relation" else 0
        if not given or not isinstance(given[0], list):
            return [self._ids_of(field, given, place)] * count
        if len(given) != count:
            message = f"must hold one list for each of {count:,} queries; got {len(given):,}"
            raise Refused(422, message, field)
        return [self._ids_of(f"{field}[{row}]", ids, place) for row, ids in enumerate(given)]


def _id(role: str, row: int, entry: int | str, names: Vocabulary | None, count: int) -> int:
    if isinstance(entry, int):
        if 0 <= entry < count:
            return entry
        raise Refused(422, f"must be in 0 .. {count - 1}; got {shown(entry)}", f"{role}[{row}]")
    if names is None:
        raise Refused(
            422, f"this model has no names of {role}, give ids: {shown(entry)}", f"{role}[{row}]"
        )
    if entry not in names:
        raise UnknownName(f"{role}[{row}]", entry, names)
    return names[entry]


def _predicted(given: dict[str, Any]) -> Side:
    """Return the side that is not given."""
    if len(given) == 3:
        raise Refused(
            422, "the third of heads, relations and tails is predicted: give two", "tails"
        )
    if "heads" not in given and "tails" not in given:
        raise Refused(
            422, "missing: give heads to predict tails, or tails to predict heads", "heads"
        )
    if len(given) == 1:
        (role,) = given
        raise Refused(422, f"missing: {role} alone are no query", "relations")
    missing: dict[str, Side] = {"heads": "head", "relations": "relation", "tails": "tail"}
    return next(side for role, side in missing.items() if role not in given)
