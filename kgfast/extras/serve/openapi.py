"""The document ``/openapi.json``: endpoints, and the models that check requests."""

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kgfast import __version__
from kgfast.extras.serve.bodies import RankBody, ScoreBody, TopkBody
from kgfast.extras.serve.limits import Limits

_QUESTIONS: dict[str, tuple[type[BaseModel], str]] = {
    "/topk": (TopkBody, "Predict tails, heads or relations, best first"),
    "/rank": (RankBody, "Rank triples among all candidates"),
    "/score": (ScoreBody, "Score triples"),
}
_OTHERS = {
    "/": ("A page with a form for queries", "text/html"),
    "/health": ("The served model, and latencies", "application/json"),
    "/metrics": ("Counts and latencies for Prometheus", "text/plain"),
    "/openapi.json": ("This document", "application/json"),
}
_REFUSED = {
    "400": "The body is no JSON",
    "408": "The body did not come in time",
    "413": "The body is too large",
    "422": "A field does not fit, a name is unknown, or an id has no row",
    "500": "The model failed",
    "503": "Too many requests: try again",
}


def openapi(limits: Limits) -> dict[str, Any]:
    """Return the description of the server by OpenAPI 3.1."""
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (model, "validation") for model, _ in _QUESTIONS.values()
    ]
    _, found = models_json_schema(models, ref_template="#/components/schemas/{model}")
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}, "field": {"type": "string"}},
    }
    schemas = _limited(found["$defs"], limits) | {"Error": error}
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": _told("The answer", kind)}}}
        for path, (summary, kind) in _OTHERS.items()
    }
    for path, (model, summary) in _QUESTIONS.items():
        body = {"required": True, **_content(model.__name__)}
        refused = {status: _told(why, schema="Error") for status, why in _REFUSED.items()}
        responses = {"200": _told("The answer"), **refused}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kgfast", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _limited(schema: Any, limits: Limits) -> Any:
    """Return a schema in which limits are numbers, and defaults respect the maximum."""
    if isinstance(schema, list):
        return [_limited(it, limits) for it in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: getattr(limits, it)
        if key in ("maxItems", "maximum") and isinstance(it, str)
        else _limited(it, limits)
        for key, it in schema.items()
    }
    if {"default", "maximum"} <= found.keys():
        found["default"] = min(found["default"], found["maximum"])
    return found


def _told(text: str, kind: str = "application/json", schema: str | None = None) -> dict[str, Any]:
    return {"description": text, **_content(schema, kind)}


def _content(schema: str | None, kind: str = "application/json") -> dict[str, Any]:
    own = {} if schema is None else {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"content": {kind: own}}
