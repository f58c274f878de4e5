"""Questions that wait share a call; each gets its own answer, or its own error."""

import asyncio
import threading

import pytest

from kgfast.extras.serve.batching import Batcher
from kgfast.extras.serve.engine import Question


class Recorder:
    """An engine that answers a question with its ids, and remembers its calls."""

    def __init__(self):
        self.calls, self.may_answer = [], threading.Event()

    def answers(self, questions):
        self.calls.append([question.columns["heads"] for question in questions])
        self.may_answer.wait()
        if any(99 in question.columns["heads"] for question in questions):
            raise ValueError("99")
        return [{"ids": question.columns["heads"]} for question in questions]


def question(*ids, include_known=False):
    return Question(
        "topk", {"heads": list(ids), "relations": list(ids)}, ("tail",), include_known, 1
    )


def asked(questions, most=1000):
    """Ask a first question, and then all others at once; return the answers."""
    engine = Recorder()
    batcher = Batcher(engine.answers, most)

    async def run():
        tasks = [asyncio.create_task(batcher.ask(questions[0]))]
        while not engine.calls:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(batcher.ask(it)) for it in questions[1:]]
        await asyncio.sleep(0)
        engine.may_answer.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run()), engine.calls, batcher


def test_what_waits_shares_a_call():
    found, calls, batcher = asked([question(1), question(2), question(3, 4), question(5)])
    assert found == [{"ids": [1]}, {"ids": [2]}, {"ids": [3, 4]}, {"ids": [5]}]
    assert calls == [[[1]], [[2], [3, 4], [5]]]
    assert (batcher.calls, batcher.queries) == (2, 5)


def test_only_alike_questions_do_and_the_oldest_comes_first():
    questions = [question(1), question(2, include_known=True), question(3)]
    questions.append(question(4, include_known=True))
    found, calls, _ = asked(questions)
    assert found == [{"ids": [id]} for id in (1, 2, 3, 4)]
    assert calls == [[[1]], [[2], [4]], [[3]]]


def test_a_batch_is_limited():
    _, calls, _ = asked([question(id) for id in range(6)], most=2)
    assert calls == [[[0]], [[1], [2]], [[3], [4]], [[5]]]


def test_a_question_that_fails_fails_alone():
    first, second, third = asked([question(1), question(99), question(2)])[0]
    assert (first, third) == ({"ids": [1]}, {"ids": [2]})
    with pytest.raises(ValueError, match="99"):
        raise second
