"""The endpoints: what they answer is what `topk` and `rank` say, and bad input names its field."""

import asyncio
import json
import re
import threading
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from starlette.testclient import TestClient

import kgfast
from kgfast.extras.serve.app import make_app
from kgfast.extras.serve.engine import Engine
from kgfast.extras.serve.limits import Limits
from support.serving import Slow, engine_of, graph, wait_for


@pytest.fixture(scope="module")
def client(engine):
    with TestClient(make_app(engine)) as found:
        yield found


def post(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


class TestTopk:
    @pytest.mark.parametrize("asked", ["heads", "tails"])
    @pytest.mark.parametrize("include_known", [False, True])
    def test_answers_are_those_of_topk(self, client, engine, asked, include_known):
        given = {asked: [3, 7], "relations": 2, "k": 4}
        found = post(client, "/topk", **given, include_known=include_known)
        top = kgfast.topk(
            engine.model,
            **given,
            known=None if include_known else engine.known,
        )
        assert found["predicted"] == ("tail" if asked == "heads" else "head")
        assert found["filtered"] is not include_known
        assert "known" not in found
        ids = [[it["id"] for it in row] for row in found["answers"]]
        scores = [[it["score"] for it in row] for row in found["answers"]]
        assert ids == top.ids.tolist()
        assert torch.equal(torch.tensor(scores), top.scores)
        names = [[it["name"] for it in row] for row in found["answers"]]
        assert names == [engine.names[0].names_of(row) for row in top.ids]

    def test_names_are_ids(self, client):
        by_id = post(client, "/topk", heads=[3, 4], relations=2)
        by_name = post(client, "/topk", heads=["entity_003", 4], relations=["symmetric_0"])
        assert by_name == by_id
        assert len(by_id["answers"][0]) == 10

    def test_relations(self, client, engine):
        found = post(client, "/topk", heads=3, tails=[5, 6], k=99)
        assert found["predicted"] == "relation"
        for row in found["answers"]:
            assert sorted(it["name"] for it in row) == sorted(engine.names[1])

    def test_fewer_candidates_than_k(self):
        few = engine_of(known=kgfast.KnownTriples([(0, 0, tail) for tail in range(298)]))
        with TestClient(make_app(few)) as client:
            found = post(client, "/topk", heads=[0, 1], relations=0, k=5)
        assert sorted(it["id"] for it in found["answers"][0]) == [298, 299]
        assert len(found["answers"][1]) == 5


EXCLUDED = {
    "anchor": "anchor",
    "names": ["entity_018", 74, "entity_018"],
    "none": [],
    "lists": [[18, "entity_074"], []],
}


class TestExclude:
    """``/topk`` with ``exclude`` finds the answers of ``topk(exclude=)``, by names and by ids."""

    @pytest.mark.parametrize("asked", ["heads", "tails"])
    @pytest.mark.parametrize("form", EXCLUDED)
    def test_answers_are_those_of_topk(self, client, engine, asked, form):
        options = {asked: [3, 7], "relations": 2, "k": 6}
        given = {
            "names": [18, 74],
            "lists": (torch.tensor([0, 2, 2]), torch.tensor([18, 74])),
        }.get(form, EXCLUDED[form])
        found = post(client, "/topk", **options, exclude=EXCLUDED[form])["answers"]
        top = kgfast.topk(engine.model, **options, known=engine.known, exclude=given)
        assert [[it["id"] for it in row] for row in found] == top.ids.tolist()

    def test_relations(self, client, engine):
        asked = {"heads": 3, "tails": [5, 6], "k": 9}
        name = engine.names[1].names_of([1])[0]
        found = post(client, "/topk", **asked, exclude=[name])["answers"]
        assert all({it["id"] for it in row} == {0, 2, 3, 4, 5} for row in found)

    def test_requests_of_a_sweep_leave_out_their_own(self, client, engine):
        """Also those that leave nothing out."""
        from kgfast.extras.serve.questions import Reader

        reader = Reader((300, 6), engine.names, Limits())
        bodies = [{"heads": [3, 4], "relations": 2, "k": 3, "exclude": it}
                  for it in ("anchor", [18], [], [[1, 2], [3]])]  # fmt: skip
        questions = [reader.topk(json.dumps(body).encode()) for body in bodies]
        assert len({question.key for question in questions}) == 1
        assert questions[3].part(1, 2).exclude == [[3]]
        together = engine.answers(questions)
        assert together == [engine.answers([question])[0] for question in questions]
        assert together == [post(client, "/topk", **body) for body in bodies]


class TestCandidates:
    """Restrictions of ``/topk`` and ``/rank`` find what ``candidate_ids`` finds."""

    FORMS: ClassVar = {
        "names": (["entity_018", 74, 18, 5, 7], [18, 74, 5, 7]),
        "lists": ([[18, 5], []], (torch.tensor([0, 2, 2]), torch.tensor([18, 5]))),
        "none": ([], (torch.tensor([0, 0, 0]), torch.tensor([], dtype=torch.int64))),
    }

    @pytest.mark.parametrize("asked", ["heads", "tails"])
    @pytest.mark.parametrize("form", [*FORMS, "types"])
    def test_answers_are_those_of_topk(self, typed, engine, asked, form):
        given, ids = self.FORMS.get(form, ("types", typed[1]))
        options = {asked: [3, 7], "relations": [2, 1], "k": 6}
        found = post(typed[0], "/topk", **options, candidates=given)["answers"]
        top = kgfast.topk(engine.model, **options, known=engine.known, candidate_ids=ids, pad=True)
        expected = [[id for id in row if id >= 0] for row in top.ids.tolist()]
        assert [[it["id"] for it in row] for row in found] == expected

    @pytest.mark.parametrize("form", [*FORMS, "types"])
    def test_ranks_are_those_of_rank(self, typed, engine, form):
        given, ids = self.FORMS.get(form, ("types", typed[1]))
        asked = {"heads": [3, 7], "relations": [2, 1], "tails": [9, 8]}
        found = post(typed[0], "/rank", **asked, candidates=given)["ranks"]
        triples = list(zip(*asked.values(), strict=True))
        ranks = kgfast.rank(engine.model, triples, known=engine.known, candidate_ids=ids)
        assert [[row[side]["realistic"] for side in row] for row in found] == (
            ranks.realistic.tolist()
        )

    def test_relations(self, client):
        found = post(client, "/topk", heads=3, tails=[5, 6], candidates=[1, 4])["answers"]
        assert all({it["id"] for it in row} == {1, 4} for row in found)

    def test_types_are_of_entities(self, typed):
        response = typed[0].post("/topk", json={"heads": 3, "tails": 4, "candidates": "types"})
        assert response.status_code == 422
        assert "relations are predicted" in response.json()["error"]

    def test_requests_of_a_sweep_have_their_own(self, engine):
        from kgfast.extras.serve.questions import Reader

        reader = Reader((300, 6), engine.names, Limits(), has_types=True)
        asked = {"heads": [3, 4], "relations": 2}
        read = [reader.topk(json.dumps({**asked, "candidates": it}).encode())
                for it in ([1, 2], [[5], [6, 7]], "types", None)]  # fmt: skip
        assert len({question.key for question in read}) == 3
        assert read[1].part(1, 2).candidates == [[6, 7]]
        assert engine.answers(read[:2]) == [engine.answers([it])[0] for it in read[:2]]


@pytest.fixture(scope="module")
def typed(engine):
    types = kgfast.TypeConstraints.from_triples(graph().train)
    with TestClient(make_app(replace(engine, types=types))) as found:
        yield found, types


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
    with TestClient(make_app(certain)) as client:
        (row,) = post(client, "/topk", heads=3, relations=2, k=2)["answers"]
        found = post(client, "/score", heads=3, relations=2, tails=row[0]["id"])
    assert row[0]["probability"] == torch.tensor(row[0]["score"]).double().sigmoid()
    assert found["probabilities"] == [row[0]["probability"]]


def test_a_sub_model_answers(engine):
    model = kgfast.MED(engine.model, dims=[4, 16])
    with TestClient(make_app(Engine(model, dim=4))) as client:
        found = post(client, "/topk", heads=3, relations=2, k=3)
        ranks = post(client, "/rank", heads=3, relations=2, tails=5)["ranks"][0]
        scores = post(client, "/score", heads=3, relations=2, tails=found["answers"][0][0]["id"])
    top = kgfast.topk(model, heads=3, relations=2, k=3, dims=4)
    assert [it["id"] for it in found["answers"][0]] == top.ids[0].tolist()
    assert scores["scores"] == [found["answers"][0][0]["score"]]
    expected = kgfast.rank(model, [(3, 2, 5)], dims=4).side("tail")
    assert ranks["tail"]["realistic"] == expected.realistic.item()


def test_ids_alone_where_rows_have_no_names():
    with TestClient(make_app(engine_of(names=(None, None), known=None))) as client:
        found = post(client, "/topk", heads=3, relations=2, k=1)
        response = client.post("/topk", json={"heads": "entity_003", "relations": 2})
    assert found["answers"][0][0].keys() == {"id", "score"}
    assert found["filtered"] is False
    assert response.status_code == 422
    assert "no names of heads, give ids" in response.json()["error"]


QUERY = {"heads": 3, "relations": 2}
TRIPLE = {**QUERY, "tails": 1}
MISTAKES = [
    ("/topk", {**QUERY, "heads": "entity_3"}, "heads[0]", "did you mean 'entity_003'"),
    ("/topk", {**QUERY, "relations": [2, "sym"]}, "relations[1]", "unknown name 'sym'"),
    ("/topk", {**QUERY, "heads": [0, 300]}, "heads[1]", "must be in 0 .. 299; got 300"),
    ("/topk", {**QUERY, "heads": -1}, "heads[0]", "must be in 0 .. 299; got -1"),
    ("/topk", {**QUERY, "heads": 10**50}, "heads[0]", "must be in 0 .. 299"),
    ("/topk", {**QUERY, "heads": True}, "heads[0]", "a name or an id; got True"),
    ("/topk", {**QUERY, "heads": 1.0}, "heads[0]", "a name or an id; got 1.0"),
    ("/topk", {**QUERY, "heads": [[1]]}, "heads[0]", "a name or an id; got [1]"),
    ("/topk", {**QUERY, "heads": {"a": "{b}" * 999}}, "heads[0]", "a name or an id"),
    ("/topk", {**QUERY, "heads": []}, "heads", "must hold 1 .. 1,000 names or ids; got 0"),
    ("/topk", {**QUERY, "heads": [1] * 1001}, "heads", "got 1,001"),
    ("/topk", {"heads": [1, 2], "relations": [0] * 3}, "heads", "relations has 3"),
    ("/topk", {"heads": 1}, "relations", "missing"),
    ("/topk", {"relations": 1}, "heads", "missing"),
    ("/topk", {}, "heads", "missing"),
    ("/topk", TRIPLE, "tails", "the third"),
    ("/topk", {**QUERY, "k": 0}, "k", "greater than or equal to 1"),
    ("/topk", {**QUERY, "k": "3"}, "k", "valid integer"),
    ("/topk", {**QUERY, "k": 2.5}, "k", "integer"),
    ("/topk", {**QUERY, "k": 1001}, "k", "must be in 1 .. 1000 for 1 queries; got 1001"),
    ("/topk", {**QUERY, "heads": [1] * 100, "k": 201}, "k", "1 .. 200 for 100 queries"),
    ("/topk", {**QUERY, "exclude": "anchors"}, "exclude", '"anchor", a list of names and ids'),
    ("/topk", {**QUERY, "exclude": 3}, "exclude", 'must be "anchor"'),
    ("/topk", {**QUERY, "exclude": [0, 300]}, "exclude[1]", "must be in 0 .. 299; got 300"),
    ("/topk", {**QUERY, "exclude": ["entity_3"]}, "exclude[0]", "did you mean 'entity_003'"),
    ("/topk", {**QUERY, "exclude": [1.5]}, "exclude[0]", "a name or an id; got 1.5"),
    ("/topk", {**QUERY, "exclude": [1] * 1001}, "exclude", "0 .. 1,000 names or ids; got 1,001"),
    ("/topk", {**QUERY, "exclude": [[1], [2]]}, "exclude", "for each of 1 queries; got 2"),
    ("/topk", {**QUERY, "exclude": [[1], 2]}, "exclude[1]", "must be a list, as others are; got 2"),
    ("/topk", {**QUERY, "exclude": [[1, True]]}, "exclude[0][1]", "a name or an id; got True"),
    ("/topk", {**QUERY, "exclude": [[1, -1]]}, "exclude[0][1]", "must be in 0 .. 299; got -1"),
    ("/topk", {"heads": 3, "tails": 4, "exclude": "anchor"}, "exclude", "relations are predicted"),
    ("/topk", {"heads": 3, "tails": 4, "exclude": [6]}, "exclude[0]", "must be in 0 .. 5; got 6"),
    ("/topk", {**QUERY, "candidates": "anchor"}, "candidates", 'must be "types", a list'),
    ("/topk", {**QUERY, "candidates": "types"}, "candidates", "kgfast serve --types"),
    ("/topk", {**QUERY, "candidates": [0, 300]}, "candidates[1]", "must be in 0 .. 299; got 300"),
    ("/topk", {**QUERY, "candidates": [[1], [2]]}, "candidates", "for each of 1 queries; got 2"),
    ("/rank", {**TRIPLE, "candidates": [1], "sides": ["relation"]}, "candidates", "relations are"),
    ("/rank", {**TRIPLE, "exclude": [1]}, "exclude", "unknown field"),
    ("/topk", {**QUERY, "include_known": 1}, "include_known", "boolean"),
    ("/topk", {**QUERY, "known": True}, "known", "the field is called 'include_known'"),
    ("/rank", {**TRIPLE, "known": False}, "known", "the field is called 'include_known'"),
    ("/topk", {"head": 3, "relations": 2}, "head", "unknown field; did you mean 'heads'"),
    ("/topk", {**QUERY, "x" * 9999: 2}, "x" * 60, "unknown field"),
    ("/topk", [], "body", "JSON object"),
    ("/rank", {**QUERY}, "tails", "required"),
    ("/rank", {**TRIPLE, "k": 3}, "k", "unknown field"),
    ("/rank", {**TRIPLE, "sides": ["tails"]}, "sides", "'head', 'relation' or 'tail'"),
    ("/rank", {**TRIPLE, "sides": []}, "sides", "at least 1"),
    ("/rank", {**TRIPLE, "sides": ["tail"] * 2}, "sides", "distinct"),
    ("/score", {**TRIPLE, "tails": [1, 999]}, "tails[1]", "must be in 0 .. 299"),
    ("/score", {**TRIPLE, "known": True}, "known", "unknown field"),
]


@pytest.mark.parametrize(("path", "body", "field", "message"), MISTAKES)
def test_what_does_not_fit_names_its_field(client, path, body, field, message):
    response = client.post(path, json=body)
    assert response.status_code == 422
    found = response.json()
    assert found["field"].startswith(field)
    assert message in found["error"]
    assert len(response.content) < 500


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 9999, b'{"k": 1' + b"0" * 5000 + b"}", b"heads=3"]
)
def test_what_is_no_json(client, body):
    response = client.post("/topk", content=body)
    assert response.status_code == 400
    assert response.json()["field"] == "body"


def test_other_paths_and_methods(client):
    assert client.get("/topk").status_code == 405
    assert client.post("/health").status_code == 405
    assert client.put("/score", json=TRIPLE).json() == {"error": "Method Not Allowed"}
    assert client.get("/docs").json() == {"error": "Not Found"}


class TestLimits:
    def test_bodies(self, engine):
        limits = Limits(body=100)
        with TestClient(make_app(engine, limits)) as client:
            long = client.post("/topk", content=b" " * 101)
            parts = client.post("/topk", content=iter([b" " * 60] * 2))
            lied = client.post("/topk", content=b"{}", headers={"content-length": "-1"})
            fits = client.post("/topk", content=json.dumps(QUERY).ljust(100))
        for response in (long, parts, lied):
            assert response.status_code == 413
            assert response.json() == {"error": "must hold at most 100 bytes", "field": "body"}
        assert fits.status_code == 200

    def test_requests(self, engine):
        """A request over the limit is told so at once; the one that runs is answered."""
        slow = Slow(engine)
        with TestClient(make_app(slow, Limits(requests=1))) as client:
            found = []
            first = threading.Thread(target=lambda: found.append(post(client, "/topk", **QUERY)))
            first.start()
            wait_for(lambda: slow.calls)
            response = client.post("/topk", json=QUERY)
            assert client.get("/health").json()["requests_now"] == 1
            slow.through.release()
            first.join()
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert len(found) == 1

    @pytest.mark.parametrize("name", ["k", "body", "head_seconds"])
    def test_none_is_zero(self, name):
        with pytest.raises(ValueError, match=f"{name} must be positive; got 0"):
            Limits(**{name: 0})


def test_requests_of_many_batches_have_the_answers_of_one(engine):
    """Requests of each kind do not depend on others beside them."""
    heads = list(range(30))
    bodies = {
        "/topk": {"heads": heads, "relations": 2, "k": 3},
        "/rank": {"heads": heads, "relations": 2, "tails": heads[::-1]},
        "/score": {"heads": heads, "relations": 2, "tails": heads[::-1]},
    }
    certain = replace(engine, probabilities=lambda scores: scores.double().sigmoid())
    with TestClient(make_app(certain, Limits(batch=1000))) as whole:
        expected = {path: post(whole, path, **body) for path, body in bodies.items()}
    with TestClient(make_app(certain, Limits(batch=7))) as parts:
        assert {path: post(parts, path, **body) for path, body in bodies.items()} == expected
        assert "kgfast_batches_total 20\n" in parts.get("/metrics").text  # 5 + 10 of 2 sides + 5


class TestHosts:
    """A page of another name, which was made to point here, is told nothing."""

    def status(self, host, here="127.0.0.1", hosts=(), path="/health"):
        app = make_app(engine_of(), hosts=hosts)
        headers = [(b"host", it.encode("latin-1")) for it in host]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        sent = []

        async def run():
            async def send(message):
                sent.append(message)

            await app(scope | {"server": (here, 8000), "query_string": b""}, None, send)

        asyncio.run(run())
        return sent[0]["status"]

    @pytest.mark.parametrize(
        ("here", "host"),
        [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1", "127.0.0.1:8000"),
            ("127.0.0.1", "127.0.0.1:"),
            ("127.0.0.1", "localhost"),
            ("127.0.0.1", "LocalHost.:80"),
            ("::1", "[::1]"),
            ("::1", "[0:0::1]:8000"),
            ("::1", "localhost:8000"),
            ("::ffff:127.0.0.1", "127.0.0.1:8000"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "[2001:DB8::1]:443"),
            ("192.0.2.7", "192.0.2.7:8000"),
        ],
    )
    def test_the_address_that_was_called(self, here, host):
        assert self.status([host], here) == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.1@evil.example",
            "127.0.0.1, evil.example",
            "127.0.0.1/evil.example",
            "127.0.0.1:80x",
            "127.0.0.2",
            "[127.0.0.1]x",
            "[::1",
            "[evil.example]",
            ":8000",
            "",
            "\xff",
        ],
    )
    @pytest.mark.parametrize("path", ["/health", "/metrics", "/topk", "/none"])
    def test_others(self, host, path):
        assert self.status([host], path=path) == 421

    def test_none_or_two(self):
        assert self.status([]) == 421
        assert self.status(["127.0.0.1", "127.0.0.1"]) == 421

    def test_localhost_is_no_other_machine(self):
        assert self.status(["localhost"], "192.0.2.7") == 421

    @pytest.mark.parametrize(
        ("allowed", "host", "status"),
        [
            ("kg.example", "KG.example.:8000", 200),
            ("KG.Example:443", "kg.example", 200),
            ("kg.example", "a.kg.example", 421),
            ("kg.example", "127.0.0.1", 200),
            ("[2001:db8::2]", "[2001:db8:0::2]:1", 200),
            ("2001:db8::2", "[2001:db8:0::2]:1", 200),
            ("*", "evil.example", 200),
        ],
    )
    def test_what_is_allowed_besides(self, allowed, host, status):
        assert self.status([host], hosts=[allowed]) == status

    @pytest.mark.parametrize("wrong", ["", "a b", "http://kg.example", "[kg.example]"])
    def test_what_is_no_name(self, wrong):
        with pytest.raises(ValueError, match="a name, an address, or"):
            make_app(engine_of(), hosts=["kg.example", wrong])

    def test_the_answer_says_what_to_do(self, client):
        response = client.post("/topk", json=QUERY, headers={"host": "evil.example"})
        assert response.status_code == 421
        assert response.json()["field"] == "Host"
        assert "'evil.example' (kgfast serve --allowed-host" in response.json()["error"]


def test_names_do_nothing_to_the_terminal_of_a_client():
    """Answers are JSON that has no control characters."""
    names = kgfast.Vocabulary([f"e\x1b\x7f\x9b[2J{i}" for i in range(300)])
    with TestClient(make_app(engine_of(names=(names, None)))) as client:
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
        with TestClient(make_app(Engine(model))) as client:
            response = client.post("/topk", json=QUERY)
            assert response.status_code == 500
            assert "7" in response.json()["error"]
            assert client.get("/health").json()["status"] == "ok"

    def test_what_is_our_fault_is_not_told(self, engine, caplog):
        class Broken:
            model, names, known = engine.model, engine.names, engine.known
            types = None

            def answers(self, questions):
                raise RuntimeError("a secret")

        with TestClient(make_app(Broken())) as client:
            response = client.post("/topk", json=QUERY)
        assert (response.status_code, response.json()) == (500, {"error": "internal error"})
        assert "a secret" in caplog.text

    def test_relations_of_a_model_that_scores_none(self):
        class TailsOnly:
            score, num_entities, num_relations, dim = "dot", 3, 3, 2
            table = torch.eye(3, 2)

            def queries(self, anchors, relations, side):
                return torch.ones(len(anchors), 2)

            def candidates(self, side):
                return self.table

        with TestClient(make_app(Engine(TailsOnly()))) as client:
            response = client.post("/topk", json={"heads": 0, "tails": 1})
        assert response.status_code == 422
        assert response.json()["field"] == "relations"


def test_health_and_metrics(engine):
    with TestClient(make_app(engine)) as client:
        post(client, "/topk", **QUERY)
        client.post("/topk", json={})
        health, metrics = client.get("/health").json(), client.get("/metrics").text
    assert health["status"] == "ok"
    assert (health["entities"], health["relations"]) == (300, 6)
    assert health["known_triples"] == len(engine.known)
    latency = health["latency"]["topk"]
    assert latency["count"] == 1
    assert latency["p50_ms"] == latency["p99_ms"] > 0
    assert 'kgfast_requests_total{endpoint="topk",status="200"} 1\n' in metrics
    assert 'kgfast_requests_total{endpoint="topk",status="422"} 1\n' in metrics
    assert 'kgfast_latency_seconds{endpoint="topk",quantile="0.99"} ' in metrics
    assert "kgfast_queries_total 1\n" in metrics
