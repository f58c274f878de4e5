"""``/openapi.json``: a valid document, whose schemas refuse the bodies that the server refuses."""

import pytest

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")
pytest.importorskip("jsonschema", reason="jsonschema is not installed")

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from kgfast.extras.serve.app import make_app
from kgfast.extras.serve.limits import Limits

# Values of every form for each field: right ones for one query, and wrong ones.
ENTRIES = [0, 5, "symmetric_0", [1], [], [1] * 4, True, None, 1.5, {}, [[1]], [None], [True]]
ENTITIES = [it if it != "symmetric_0" else "entity_003" for it in ENTRIES]
LISTS = [[], [1, 2], ["entity_003"], [[1, 2]], [[]], [1] * 4, [[1] * 4], [[1], 2], [1.5], 3, None]
FIELDS = {
    "heads": ENTITIES,
    "relations": ENTRIES,
    "tails": ENTITIES,
    "k": [1, 7, 8, 0, -1, "3", 2.5, True, None],
    "include_known": [True, False, 0, None, "true"],
    "exclude": ["anchor", "types", *LISTS],
    "candidates": ["anchor", *LISTS],
    "sides": [["head"], ["tail", "head"], [], ["head", "head"], ["tails"], "head", None],
    "more": [1],
}
BODIES = {"/topk": "TopkBody", "/rank": "RankBody", "/score": "ScoreBody"}


@pytest.fixture(scope="module")
def client(engine):
    with TestClient(make_app(engine, Limits(queries=3, k=7))) as found:
        yield found


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


def test_the_document_is_valid(document):
    validator = pytest.importorskip(
        "openapi_spec_validator", reason="openapi-spec-validator is not installed"
    )
    validator.validate(document)


def test_limits_are_those_of_the_server(document):
    fields = document["components"]["schemas"]["TopkBody"]["properties"]
    assert (fields["k"]["maximum"], fields["k"]["default"]) == (7, 7)
    assert fields["heads"]["anyOf"][0]["oneOf"][1]["maxItems"] == 3


def test_every_endpoint_is_described(client, document):
    for path, methods in document["paths"].items():
        for method in methods:
            assert client.request(method, path, json={}).status_code not in (404, 405)


@pytest.fixture(scope="module")
def fits(document):
    """Return by path whether its schema takes a body."""
    return {
        path: jsonschema.Draft202012Validator(
            {**document, "$ref": f"#/components/schemas/{name}"}
        ).is_valid
        for path, name in BODIES.items()
    }


def bodies():
    """Bodies of few fields, most of them right."""
    likely = {
        name: st.one_of(st.just(values[0]), st.sampled_from(values))
        for name, values in FIELDS.items()
    }
    return st.fixed_dictionaries({}, optional=likely)


@settings(max_examples=1500)
@given(path=st.sampled_from(sorted(BODIES)), body=bodies())
def test_the_schema_refuses_what_the_server_refuses(client, fits, path, body):
    if body.get("relations") is None:  # relations are predicted, which a schema does not know
        for name in ("exclude", "candidates"):
            if body.get(name) in ("anchor", ["entity_003"]):
                del body[name]
    assert (client.post(path, json=body).status_code == 200) == fits[path](body), body
