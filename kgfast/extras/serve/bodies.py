"""Bodies of requests: one description, which checks requests and makes ``/openapi.json``."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kgfast.extras.serve.limits import Limits
from kgfast.extras.serve.refusals import Refused
from kgfast.graph import did_you_mean
from kgfast.models import SIDES
from kgfast.text import shown

ROLES = ("heads", "relations", "tails")
_GIVEN: Any = {"not": {"type": "null"}}
_NOT_GIVEN: Any = {"type": "null"}


def _wrong(message: str) -> PydanticCustomError:
    # pydantic formats the message as a template, so the client's text must not stand there.
    return PydanticCustomError("wrong", "{message}", {"message": message})


def _said(forms: str) -> WrapValidator:
    """Return a check with an error that names all forms of a value."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise _wrong(f"must be {forms}; got {shown(value)}") from None

    return WrapValidator(check)


@dataclass(frozen=True)
class _Length:
    """Bounds of a list, checked before the entries; ``--max-queries`` is the upper bound."""

    least: int
    entries: str = "names or ids"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | {"minItems": self.least, "maxItems": "queries"}

    def _check(self, value: Any, info: ValidationInfo) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(f"must be a list, as others are; got {shown(value)}")
        assert isinstance(info.context, Limits)
        most = info.context.queries
        if not self.least <= len(value) <= most:
            raise _wrong(f"must hold {self.least} .. {most:,} {self.entries}; got {len(value):,}")
        return value


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise _wrong("must be distinct")
    return values


def _form(value: Any) -> str:
    """Return the tag of one of the forms below."""
    if not isinstance(value, list):
        return "one"
    return "each" if any(isinstance(entry, list) for entry in value) else "shared"


Entry = Annotated[int | str, _said("a name or an id")]
Entries = Annotated[
    Annotated[Entry, AfterValidator(lambda entry: [entry]), Tag("single")]
    | Annotated[list[Entry], _Length(1), Tag("shared")],
    Discriminator(lambda value: "shared" if isinstance(value, list) else "single"),
]
_Some = Annotated[list[Entry], _Length(0)]
_Shared = Annotated[_Some, Tag("shared")]
_Each = Annotated[list[_Some], _Length(1, "lists"), Tag("each")]
_LISTS = "a list of names and ids, or such a list for each query"
Excluded = Annotated[
    Annotated[Literal["anchor"], _said(f'"anchor", {_LISTS}'), Tag("one")] | _Shared | _Each,
    Discriminator(_form),
]
Restricted = Annotated[
    Annotated[Literal["types"], _said(f'"types", {_LISTS}'), Tag("one")] | _Shared | _Each,
    Discriminator(_form),
]


class _Body(BaseModel):
    """Base of request bodies."""

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
                message = "unknown field; the field is called 'include_known'"
            raise Refused(422, message, shown(field)[1:-1])
        rows = (0 if it == "single" else it for it in first["loc"][1:])
        place = "".join(f"[{row}]" for row in rows if isinstance(row, int))
        raise Refused(422, message, field + place)


class TopkBody(_Body):
    """Body with two of heads, relations and tails; the third is predicted."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "required": [role for role in ROLES if role != predicted],
                    "properties": {
                        role: _NOT_GIVEN if role == predicted else _GIVEN for role in ROLES
                    },
                }
                for predicted in ROLES
            ]
        }
    )

    heads: Entries | None = None
    relations: Entries | None = None
    tails: Entries | None = None
    k: int = Field(default=10, ge=1, json_schema_extra={"maximum": "k"})
    include_known: bool = False
    exclude: Excluded | None = None
    candidates: Restricted | None = None


class ScoreBody(_Body):
    """Body with triples."""

    heads: Entries
    relations: Entries
    tails: Entries


class RankBody(ScoreBody):
    """Body with triples, and the sides to rank."""

    sides: Annotated[
        list[Literal["head", "relation", "tail"]],
        Field(min_length=1, max_length=3, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_distinct),
    ] = list(SIDES)
    include_known: bool = False
    candidates: Restricted | None = None
