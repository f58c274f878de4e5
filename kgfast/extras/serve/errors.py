"""What a client gets wrong, as an answer that says so."""

from typing import Any


class Refused(Exception):
    """A request that gets an error for an answer.

    Parameters
    ----------
    status : int
        Of HTTP.
    message : str
    field : str, optional
        The field of the body that is wrong, such as ``heads[3]``.
    headers : dict, optional
        Of the answer.
    """

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
        """The body of the answer."""
        own = {} if self.field is None else {"field": self.field}
        return {"error": str(self)} | own
