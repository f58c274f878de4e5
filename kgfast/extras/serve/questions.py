"""Questions of clients: bodies of requests become checked ids, or an error that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kgfast.extras.serve.engine import Engine, Question
from kgfast.graph import did_you_mean
from kgfast.models import SIDES, Side
from kgfast.text import shown

ANSWERS = 20_000  # queries times k of a request
ROLES: dict[str, Side] = {"heads": "head", "relations": "relation", "tails": "tail"}
Entry = int | str
Entries = Annotated[
    Entry | list[Entry], Field(description="Names or ids: one for each query, or one for all.")
]
Lists = list[Entry] | list[list[Entry]]
Restricted = Annotated[
    Lists | None, Field(description="The only candidates, for all queries or a list for each.")
]
WithKnown = Annotated[bool, Field(description="Known triples are candidates, too.")]


class Refused(Exception):
    """Question that gets an error as answer; ``field`` is the wrong field, such as ``heads[3]``."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TopkBody(_Body):
    """Two of heads, relations and tails; the server predicts the third."""

    heads: Entries | None = None
    relations: Entries | None = None
    tails: Entries | None = None
    k: Annotated[int, Field(ge=1, description="Answers to each query, at most --max-k.")] = 10
    include_known: WithKnown = False
    candidates: Restricted = None


class ScoreBody(_Body):
    """Triples."""

    heads: Entries
    relations: Entries
    tails: Entries


class RankBody(ScoreBody):
    """Triples, and the sides to rank."""

    sides: list[Literal["head", "relation", "tail"]] = list(SIDES)
    include_known: WithKnown = False
    candidates: Restricted = None


@dataclass(frozen=True)
class Reader:
    """Reader of questions to an engine, with limits of ``k`` and of the queries of a request."""

    engine: Engine
    max_k: int
    max_queries: int

    def topk(self, body: TopkBody) -> Question:
        """Read the question of ``POST /topk``."""
        fields = {role: getattr(body, role) for role in ROLES if getattr(body, role) is not None}
        if len(fields) != 2:
            raise Refused(
                next((role for role in ROLES if role not in fields), "tails"),
                "give two of heads, relations and tails: the third is predicted",
            )
        (side,) = (side for role, side in ROLES.items() if role not in fields)
        columns = self._columns(fields)
        queries = len(columns["heads" if "heads" in columns else "tails"])
        most = min(self.max_k, max(1, ANSWERS // queries))
        k = body.k if "k" in body.model_fields_set else min(body.k, most)
        if k > most:
            message = f"must be in 1 .. {most} for {queries:,} queries; got {shown(k)}"
            raise Refused("k", message)
        candidates = self._restricted(body.candidates, queries, side)
        return Question("topk", columns, (side,), body.include_known, k, candidates)

    def rank(self, body: RankBody) -> Question:
        """Read the question of ``POST /rank``."""
        columns, sides = self._triples(body), tuple(body.sides)
        if not sides or len(set(sides)) != len(sides):
            raise Refused("sides", f"must be 1 to 3 distinct sides; got {shown(body.sides)}")
        if body.candidates is not None and "relation" in sides:
            raise Refused("candidates", "are entities: not together with the side relation")
        candidates = self._restricted(body.candidates, len(columns["heads"]), sides[0])
        return Question("rank", columns, sides, body.include_known, candidates=candidates)

    def score(self, body: ScoreBody) -> Question:
        """Read the question of ``POST /score``."""
        return Question("score", self._triples(body))

    def _triples(self, body: ScoreBody) -> dict[str, list[int]]:
        return self._columns({role: getattr(body, role) for role in ROLES})

    def _columns(self, given: dict[str, Any]) -> dict[str, list[int]]:
        columns = {}
        for role, entries in given.items():
            columns[role] = self._ids(
                role, entries if isinstance(entries, list) else [entries], role == "relations"
            )
            if not columns[role]:
                raise Refused(role, "must hold a name or an id; got none")
        length, longest = max((len(column), role) for role, column in columns.items())
        for role, column in columns.items():
            if len(column) not in (1, length):
                message = f"has {len(column):,} entries, {longest} has {length:,}: one for each?"
                raise Refused(role, message)
            columns[role] = column * (length // len(column))
        return columns

    def _restricted(self, lists: Lists | None, count: int, side: Side) -> list[list[int]] | None:
        """Return distinct candidates of each query."""
        if lists is None:
            return None
        are_relations = side == "relation"
        if not lists or not isinstance(lists[0], list):
            ids = self._ids("candidates", lists, are_relations)
            return [list(dict.fromkeys(ids))] * count
        if len(lists) != count:
            message = f"must hold one list for each of {count:,} queries; got {len(lists):,}"
            raise Refused("candidates", message)
        each = (
            self._ids(f"candidates[{row}]", ids, are_relations) for row, ids in enumerate(lists)
        )
        return [list(dict.fromkeys(ids)) for ids in each]

    def _ids(self, field: str, entries: Sequence[Any], are_relations: bool) -> list[int]:
        if len(entries) > self.max_queries:
            message = f"must hold at most {self.max_queries:,} entries; got {len(entries):,}"
            raise Refused(field, message)
        model, names = self.engine.model, self.engine.names[are_relations]
        count = model.num_relations if are_relations else model.num_entities
        ids = []
        for row, entry in enumerate(entries):
            if names is not None and entry in names:
                ids.append(names[entry])
            elif isinstance(entry, int) and 0 <= entry < count:
                ids.append(entry)
            else:
                message = f"must be in 0 .. {count - 1}; got {shown(entry)}"
                if isinstance(entry, str) and names is None:
                    message = f"this model has no names here, give ids; got {shown(entry)}"
                elif isinstance(entry, str) and names is not None:
                    message = f"unknown name {shown(entry)}{did_you_mean(entry, names)}"
                raise Refused(f"{field}[{row}]", message)
        return ids
