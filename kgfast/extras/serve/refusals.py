"""Requests that are refused."""

from typing import Any

from kgfast.graph import Vocabulary, did_you_mean
from kgfast.text import shown


class Refused(Exception):
    """Request that gets an HTTP error as answer; ``field`` is such as ``heads[3]``."""

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
    """Name without a row; finding similar names can take a third of a second."""

    def __init__(self, field: str, name: str, names: Vocabulary) -> None:
        super().__init__(field, name)
        self.field, self.name, self.names = field, name, names

    def refused(self) -> Refused:
        """Return the refusal, with suggestions."""
        hint = did_you_mean(self.name, self.names)
        return Refused(422, f"unknown name {shown(self.name)}{hint}", self.field)
