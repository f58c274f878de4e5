"""The endpoints: what they answer is what `topk` and `rank` say, and bad input names its field."""

import re

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

import kgfast
from kgfast.extras.serve import app
from kgfast.extras.serve.engine import Engine
from kgfast.extras.serve.questions import TopkBody
from support.serving import client_of, engine_of


@pytest.fixture(scope="module")
def client(engine):
    with client_of(engine) as found:
        yield found


def post(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# Fields of a request, by names and by ids, and the arguments of topk() that they stand for.
FORMS = {
    "filtered": ({}, {}),
    "include_known": ({"include_known": True}, {"known": None}),
    "candidates": ({"candidates": ["entity_018", 74, 18, 5, 7]}, {"candidate_ids": [18, 74, 5, 7]}),
    "lists": ({"candidates": [[18, 5], []]}, {"candidate_ids": torch.tensor([[18, 5], [-1, -1]])}),
    "none": ({"candidates": []}, {"candidate_ids": []}),
}


class TestTopk:
    @pytest.mark.parametrize("asked", ["heads", "tails"])
    @pytest.mark.parametrize("form", FORMS)
    def test_answers_are_those_of_topk(self, client, engine, asked, form):
        fields, options = FORMS[form]
        options = {"known": engine.known} | options
        given = {asked: [3, 7], "relations": [2, 1], "k": 6}
        found = post(client, "/topk", **given, **fields)
        top = kgfast.topk(engine.model, **given, **options, pad=True)
        assert found["predicted"] == ("tail" if asked == "heads" else "head")
        assert found["filtered"] is (form != "include_known")
        assert "known" not in found
        name = engine.names[0].name
        expected = [
            [(id, score, name(id)) for id, score in zip(*row, strict=True) if id >= 0]
            for row in zip(top.ids.tolist(), top.scores.tolist(), strict=True)
        ]
        rows = [[(it["id"], it["score"], it["name"]) for it in row] for row in found["answers"]]
        assert rows == expected

    def test_names_are_ids(self, client):
        by_id = post(client, "/topk", heads=[3, 4], relations=2)
        by_name = post(client, "/topk", heads=["entity_003", 4], relations=["symmetric_0"])
        assert by_name == by_id
        assert len(by_id["answers"][0]) == 10

    def test_relations(self, client, engine):
        for fields, ids in (({}, {*range(6)}), ({"candidates": [1, 4]}, {1, 4})):
            found = post(client, "/topk", heads=3, tails=[5, 6], k=9, **fields)
            assert found["predicted"] == "relation"
            for row in found["answers"]:
                assert {it["id"] for it in row} == ids
                assert {it["name"] for it in row} == set(engine.names[1].names_of(sorted(ids)))

    def test_fewer_candidates_than_k(self):
        few = engine_of(known=kgfast.KnownTriples([(0, 0, tail) for tail in range(298)]))
        with client_of(few) as client:
            found = post(client, "/topk", heads=[0, 1], relations=0, k=5)
        assert sorted(it["id"] for it in found["answers"][0]) == [298, 299]
        assert len(found["answers"][1]) == 5


def test_ranks_are_those_of_rank(client, engine):
    triples = [(3, 2, 7), (3, 2, 8), (9, 2, 8)]
    heads, relations, tails = (list(column) for column in zip(*triples, strict=True))
    asked = {"heads": heads, "relations": relations, "tails": tails}
    for include_known in (False, True):
        options = {"include_known": include_known, "sides": ["tail", "relation"]}
        found = post(client, "/rank", **asked, **options)
        assert found["filtered"] is not include_known
        ranks = kgfast.rank(
            engine.model,
            triples,
            known=None if include_known else engine.known,
            sides=("tail", "relation"),
        )
        for kind in ("optimistic", "realistic", "pessimistic", "num_candidates"):
            rows = [[row[side][kind] for side in ("tail", "relation")] for row in found["ranks"]]
            assert rows == getattr(ranks, kind).tolist()
    assert post(client, "/rank", **asked)["ranks"][0].keys() == {"head", "tail"}


def test_scores_are_those_of_topk(client, engine):
    top = post(client, "/topk", heads=3, relations=2, k=5)["answers"][0]
    tails = [it["id"] for it in top]
    found = post(client, "/score", heads=3, relations=2, tails=tails)
    assert found == {"scores": [it["score"] for it in top]}


def test_probabilities_where_a_loss_has_them():
    certain = engine_of(probabilities=lambda scores: scores.double().sigmoid())
    with client_of(certain) as client:
        (row,) = post(client, "/topk", heads=3, relations=2, k=2)["answers"]
        found = post(client, "/score", heads=3, relations=2, tails=row[0]["id"])
    assert row[0]["probability"] == torch.tensor(row[0]["score"]).double().sigmoid()
    assert found["probabilities"] == [row[0]["probability"]]


def test_a_sub_model_answers(engine):
    model = kgfast.MED(engine.model, dims=[4, 16])
    with client_of(Engine(model, dim=4)) as client:
        found = post(client, "/topk", heads=3, relations=2, k=3)
        ranks = post(client, "/rank", heads=3, relations=2, tails=5)["ranks"][0]
        scores = post(client, "/score", heads=3, relations=2, tails=found["answers"][0][0]["id"])
    top = kgfast.topk(model, heads=3, relations=2, k=3, dims=4)
    assert [it["id"] for it in found["answers"][0]] == top.ids[0].tolist()
    assert scores["scores"] == [found["answers"][0][0]["score"]]
    expected = kgfast.rank(model, [(3, 2, 5)], dims=4).side("tail")
    assert ranks["tail"]["realistic"] == expected.realistic.item()


def test_a_side_that_a_model_does_not_score_is_named():
    with client_of(Engine(kgfast.TNTComplEx.init(9, 3, 4, num_times=2, seed=0))) as client:
        response = client.post("/rank", json={**TRIPLE, "sides": ["relation"]})
    assert (response.status_code, response.json()["field"]) == (422, "sides")


def test_ids_alone_where_rows_have_no_names():
    with client_of(engine_of(names=(None, None), known=None)) as client:
        found = post(client, "/topk", heads=3, relations=2, k=1)
        response = client.post("/topk", json={"heads": "entity_003", "relations": 2})
    assert found["answers"][0][0].keys() == {"id", "score"}
    assert found["filtered"] is False
    assert response.status_code == 422
    assert "no names here, give ids" in response.json()["error"]


QUERY = {"heads": 3, "relations": 2}
TRIPLE = {**QUERY, "tails": 1}
MISTAKES = [
    ("/topk", {**QUERY, "heads": "entity_3"}, "heads[0]", "did you mean 'entity_"),
    ("/topk", {**QUERY, "relations": [2, "sym"]}, "relations[1]", "unknown name 'sym'"),
    ("/topk", {**QUERY, "heads": [0, 300]}, "heads[1]", "must be in 0 .. 299; got 300"),
    ("/topk", {**QUERY, "heads": 10**50}, "heads[0]", "must be in 0 .. 299"),
    ("/topk", {**QUERY, "heads": [1, True]}, "heads[1]", "integer or a valid string; got True"),
    ("/topk", {**QUERY, "heads": {"a": "{b}" * 999}}, "heads", "a valid list; got"),
    ("/topk", {**QUERY, "heads": []}, "heads", "must hold a name or an id"),
    ("/topk", {**QUERY, "heads": [1] * 1001}, "heads", "at most 1,000 entries; got 1,001"),
    ("/topk", {"heads": [1, 2], "relations": [0] * 3}, "heads", "relations has 3"),
    ("/topk", {"heads": 1}, "relations", "give two of heads, relations and tails"),
    ("/topk", TRIPLE, "tails", "the third is predicted"),
    ("/topk", {**QUERY, "k": 0}, "k", "greater than or equal to 1; got 0"),
    ("/topk", {**QUERY, "k": "3"}, "k", "valid integer; got '3'"),
    ("/topk", {**QUERY, "k": 1001}, "k", "must be in 1 .. 1000 for 1 queries; got 1001"),
    ("/topk", {**QUERY, "heads": [1] * 100, "k": 201}, "k", "1 .. 200 for 100 queries"),
    ("/topk", {**QUERY, "candidates": [[1], [2]]}, "candidates", "for each of 1 queries; got 2"),
    ("/rank", {**TRIPLE, "candidates": [1], "sides": ["relation"]}, "candidates", "side relation"),
    ("/topk", {**QUERY, "include_known": 1}, "include_known", "boolean; got 1"),
    ("/topk", {"head": 3, "relations": 2}, "head", "unknown field; did you mean 'heads'"),
    ("/topk", {**QUERY, "x" * 9999: 2}, "x" * 60, "unknown field"),
    ("/topk", [], "body", "JSON object"),
    ("/rank", {**QUERY}, "tails", "required"),
    ("/rank", {**TRIPLE, "sides": ["tails"]}, "sides[0]", "'head', 'relation' or 'tail'"),
    ("/rank", {**TRIPLE, "sides": ["tail"] * 2}, "sides", "distinct sides"),
    ("/score", {**TRIPLE, "tails": [1, 999]}, "tails[1]", "must be in 0 .. 299"),
]


@pytest.mark.parametrize(("path", "body", "field", "message"), MISTAKES)
def test_what_does_not_fit_names_its_field(client, path, body, field, message):
    response = client.post(path, json=body)
    assert response.status_code == 422
    found = response.json()
    assert found["field"].startswith(field)
    assert message in found["error"]
    assert len(response.content) < 500


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 9999, b"heads=3"])
def test_what_is_no_json(client, body):
    response = client.post("/topk", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]
    assert client.post("/topk", content=b'{"heads": 3, "relations": 2}').status_code == 422


def test_bodies_are_bounded(engine):
    with client_of(engine, max_body=100) as client:
        long = client.post("/topk", content=b" " * 101)
        parts = client.post("/topk", content=iter([b" " * 60] * 2))
        fits = client.post("/topk", json=QUERY)
    assert [it.status_code for it in (long, parts, fits)] == [413, 413, 200]


class TestHosts:
    """A page of another name, which was made to point here, is told nothing."""

    @pytest.mark.parametrize(
        ("allowed", "host", "status"),
        [
            ([], "localhost:8000", 200),
            ([], "127.0.0.1", 200),
            ([], "evil.example", 400),
            ([], "127.0.0.1@evil.example", 400),
            (["kg.example"], "kg.example:8000", 200),
            (["[2001:db8::2]"], "[2001:db8::2]:1", 200),
            (["*"], "evil.example", 200),
        ],
    )
    def test_names(self, engine, allowed, host, status):
        client = client_of(engine, hosts=allowed)
        assert client.get("/", headers={"host": host}).status_code == status

    @pytest.mark.parametrize("wrong", ["", "a b", "http://kg.example", "[kg.example]", "*x"])
    def test_what_is_no_name(self, engine, wrong):
        with pytest.raises(ValueError, match="a name, an address, or"):
            app.make_app(engine, hosts=["kg.example", wrong])


def test_names_do_nothing_to_the_terminal_of_a_client():
    """Answers are JSON that has no control characters."""
    names = kgfast.Vocabulary([f"e\x1b\x7f\x9b[2J{i}" for i in range(300)])
    with client_of(engine_of(names=(names, None))) as client:
        good = client.post("/topk", json=QUERY)
        wrong = client.post("/topk", json={**QUERY, "heads": "e\x9b[2J"})
    assert good.json()["answers"][0][0]["name"].startswith("e\x1b\x7f\x9b[2J")
    assert wrong.status_code == 422
    for response in (good, wrong):
        assert not re.search("[\0-\x1f\x7f-\x9f]", response.text)


class TestFailures:
    def test_a_model_that_fails_does_not_end_the_server(self):
        broken = engine_of()
        table = broken.model.entity.detach().clone()
        table[7, 0] = float("nan")
        model = kgfast.RotatE(table, broken.model.relation, relation_format="phase")
        with client_of(Engine(model)) as client:
            response = client.post("/topk", json=QUERY)
            assert response.status_code == 500
            assert "7" in response.json()["error"]
            assert client.get("/health").json()["status"] == "ok"

    def test_what_is_our_fault_is_not_told(self, monkeypatch, engine):
        def fail(*_):
            raise RuntimeError("a secret")

        monkeypatch.setattr(Engine, "answer", fail)
        response = client_of(engine).post("/topk", json=QUERY)
        assert (response.status_code, response.json()) == (500, {"error": "internal error"})

    def test_relations_of_a_model_that_scores_none(self):
        class TailsOnly:
            score, num_entities, num_relations, dim = "dot", 3, 2, 2
            table = torch.eye(3, 2)

            def queries(self, anchors, relations, side):
                return torch.ones(len(anchors), 2)

            def candidates(self, side):
                return self.table

        with client_of(Engine(TailsOnly())) as client:
            response = client.post("/topk", json={"heads": 0, "tails": 1})
        assert response.status_code == 422
        assert response.json()["field"] == "relations"


def test_health(engine):
    with client_of(engine) as client:
        post(client, "/topk", **QUERY)
        client.post("/topk", json={})
        health = client.get("/health").json()
    assert health["status"] == "ok"
    assert (health["entities"], health["relations"]) == (300, 6)
    assert health["known_triples"] == len(engine.known)
    assert (health["names"], health["labels"]) == (True, False)


def test_a_question_that_is_no_post_hears_where_to_ask(client):
    for error in (client.get("/topk"), client.post("/top", json={})):
        assert error.status_code in (404, 405)
        assert "POST requests to /topk, /rank and /score" in error.json()["error"]


def test_the_document_describes_requests(client):
    """`/openapi.json` has every field of the bodies, and the form of errors."""
    document = client.get("/openapi.json").json()
    assert {"/topk", "/rank", "/score", "/health"} <= set(document["paths"])
    schemas = document["components"]["schemas"]
    assert set(schemas["TopkBody"]["properties"]) == set(TopkBody.model_fields)
    wrong = document["paths"]["/topk"]["post"]["responses"]["422"]["content"]["application/json"]
    assert wrong["schema"]["$ref"].endswith("/Error")
