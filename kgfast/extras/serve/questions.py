"""Questions of clients: JSON becomes checked ids, or an error that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from kgfast.extras.serve.limits import Limits
from kgfast.graph import Names, Vocabulary, did_you_mean
from kgfast.models import SIDES, Side
from kgfast.text import shown

_ROLES = ("heads", "relations", "tails")


class Refused(Exception):
    """A request that gets an HTTP error for an answer; ``field`` is such as ``heads[3]``."""

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.field, self.headers = status, field, headers

    def content(self) -> dict[str, Any]:
        """Return the body of the answer."""
        own = {} if self.field is None else {"field": self.field}
        return {"error": str(self)} | own


class UnknownName(Exception):
    """A name without a row; finding similar names can take a third of a second."""

    def __init__(self, field: str, name: str, names: Vocabulary) -> None:
        super().__init__(field, name)
        self.field, self.name, self.names = field, name, names

    def refused(self) -> Refused:
        """Return the refusal, with suggestions."""
        hint = did_you_mean(self.name, self.names)
        return Refused(422, f"unknown name {shown(self.name)}{hint}", self.field)


def _entries(value: Any, info: ValidationInfo) -> list[int | str]:
    """Check names and ids; a single one becomes a list."""
    return _checked(value if isinstance(value, list) else [value], info, least=1)


def _checked(
    entries: list[Any], info: ValidationInfo, place: str = "", *, least: int
) -> list[int | str]:
    """Check that entries are names and ids, and how many there are."""
    assert isinstance(info.context, Limits)
    most = info.context.queries
    if not least <= len(entries) <= most:
        raise _wrong(f"must hold {least} .. {most:,} names or ids; got {len(entries):,}", place)
    for row, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int | str):
            raise _wrong(f"must be a name or an id; got {shown(entry)}", f"{place}[{row}]")
    return entries


def _excluded(value: Any, info: ValidationInfo) -> Any:
    """Check the word "anchor", a list of names and ids, or a list of such lists."""
    if value is None or value == "anchor":
        return value
    if not isinstance(value, list):
        forms = 'must be "anchor", a list of names and ids, or such a list for each query'
        raise _wrong(f"{forms}; got {shown(value)}")
    if not any(isinstance(entry, list) for entry in value):
        return _checked(value, info, least=0)
    for row, entry in enumerate(value):
        if not isinstance(entry, list):
            raise _wrong(f"must be a list, as others are; got {shown(entry)}", f"[{row}]")
        _checked(entry, info, f"[{row}]", least=0)
    return value


def _wrong(message: str, place: str = "") -> PydanticCustomError:
    # pydantic formats the message as a template, so the client's text must not stand in it.
    return PydanticCustomError("wrong", "{message}", {"message": message, "place": place})


Entries = Annotated[list[int | str], PlainValidator(_entries)]
Excluded = Annotated[Any, PlainValidator(_excluded)]


class _Body(BaseModel):
    """The base of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def of(cls, body: bytes, limits: Limits) -> Self:
        """Parse a body; refuse (400: no JSON, 422: does not fit) by the first wrong field."""
        try:
            return cls.model_validate_json(body, context=limits)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
        misspelt = (it for it in found if it["type"] == "extra_forbidden")
        first = next(misspelt, found[0])
        if first["type"] == "json_invalid":
            raise Refused(400, shown(first["msg"], 200)[1:-1], "body")
        if not first["loc"]:
            raise Refused(422, "must be a JSON object", "body")
        field, message = str(first["loc"][0]), first["msg"]
        if first["type"] == "extra_forbidden":
            message = f"unknown field{did_you_mean(field, cls.model_fields)}"
            if field == "known" and "include_known" in cls.model_fields:
                message = "unknown field; its name is 'include_known'"
            raise Refused(422, message, shown(field)[1:-1])
        raise Refused(422, message, field + first.get("ctx", {}).get("place", ""))


class TopkBody(_Body):
    """The body of ``POST /topk``: two of heads, relations, tails; the third is predicted."""

    heads: Entries | None = None
    relations: Entries | None = None
    tails: Entries | None = None
    k: int = Field(default=10, ge=1)
    include_known: bool = False
    exclude: Excluded = None


class ScoreBody(_Body):
    """The body of ``POST /score``: triples."""

    heads: Entries
    relations: Entries
    tails: Entries


class RankBody(ScoreBody):
    """The body of ``POST /rank``: triples, and the sides to rank."""

    sides: list[Literal["head", "relation", "tail"]] = Field(
        default=list(SIDES), min_length=1, max_length=3
    )
    include_known: bool = False


@dataclass(frozen=True)
class Question:
    """A request as ids."""

    kind: Literal["topk", "rank", "score"]
    columns: tuple[list[int], ...]  # of topk: anchors, others; else heads, relations, tails
    sides: tuple[Side, ...] = ()  # predicted, or ranked
    include_known: bool = False  # known triples are candidates too
    k: int = 0  # answers to a query
    exclude: Sequence[list[int]] = ()  # ids that are no answers to each query; empty: none

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key that questions of one call share."""
        return self.kind, self.sides, self.include_known

    def __len__(self) -> int:
        """Return the number of queries, or triples."""
        return len(self.columns[0])

    def part(self, start: int, stop: int) -> Self:
        """Return the question for some of the queries."""
        columns = tuple(column[start:stop] for column in self.columns)
        return replace(self, columns=columns, exclude=self.exclude[start:stop])


@dataclass(frozen=True)
class Reader:
    """A parser of request bodies for one model."""

    sizes: tuple[int, int]  # entities, relations
    names: Names
    limits: Limits

    def topk(self, body: bytes) -> Question:
        """Parse ``POST /topk``."""
        asked = TopkBody.of(body, self.limits)
        given = {role: getattr(asked, role) for role in _ROLES if getattr(asked, role) is not None}
        side = _predicted(given)
        columns = self._columns(given)
        if side == "head":  # anchors are the tails
            columns = columns[::-1]
        most = min(self.limits.k, self.limits.answers // len(columns[0]))
        if asked.k > most:
            queries = len(columns[0])
            raise Refused(
                422, f"must be in 1 .. {most} for {queries:,} queries; got {shown(asked.k)}", "k"
            )
        there = self.sizes[1 if side == "relation" else 0]
        exclude = self._excluded(asked.exclude, columns[0], side)
        return Question("topk", columns, (side,), asked.include_known, min(asked.k, there), exclude)

    def rank(self, body: bytes) -> Question:
        """Parse ``POST /rank``."""
        asked = RankBody.of(body, self.limits)
        if len(set(asked.sides)) != len(asked.sides):
            raise Refused(422, "must be distinct", "sides")
        return Question("rank", self._triples(asked), tuple(asked.sides), asked.include_known)

    def score(self, body: bytes) -> Question:
        """Parse ``POST /score``."""
        return Question("score", self._triples(ScoreBody.of(body, self.limits)))

    def _triples(self, asked: ScoreBody) -> tuple[list[int], ...]:
        return self._columns({role: getattr(asked, role) for role in _ROLES})

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
        place = 1 if side == "relation" else 0
        if not given:
            return ()
        if not isinstance(given[0], list):
            return [self._ids_of("exclude", given, place)] * len(anchors)
        if len(given) != len(anchors):
            message = f"must hold one list for each of {len(anchors):,} queries; got {len(given):,}"
            raise Refused(422, message, "exclude")
        return [self._ids_of(f"exclude[{row}]", ids, place) for row, ids in enumerate(given)]


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
