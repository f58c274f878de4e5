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


class Gate(Recorder):
    """An engine whose every call waits to be let through."""

    def __init__(self):
        super().__init__()
        self.through = threading.Semaphore(0)
        self.may_answer.set()

    def answers(self, questions):
        found = super().answers(questions)
        self.through.acquire()
        return found


def test_a_large_question_is_answered_in_parts_with_others_between_them():
    engine = Gate()

    async def run():
        batcher = Batcher(engine.answers, 4)
        large = asyncio.create_task(batcher.ask(question(*range(10))))
        while len(engine.calls) < 1:
            await asyncio.sleep(0.001)
        small = asyncio.create_task(batcher.ask(question(50)))
        other = asyncio.create_task(batcher.ask(question(60, include_known=True)))
        await asyncio.sleep(0)
        for _ in range(2):
            engine.through.release()
        assert await small == {"ids": [50]}
        assert not large.done()
        engine.through.release(9)
        return await asyncio.gather(large, other)

    assert asyncio.run(run()) == [{"ids": list(range(10))}, {"ids": [60]}]
    first, rest = [[0, 1, 2, 3]], [[[4, 5, 6, 7]], [[8, 9]]]
    assert engine.calls == [first, [[50]], [[60]], *rest]


def test_two_large_questions_take_turns():
    _, calls, _ = asked([question(1), question(*range(10, 16)), question(*range(20, 26))], most=3)
    assert calls[1:] == [[[10, 11, 12]], [[20, 21, 22]], [[13, 14, 15]], [[23, 24, 25]]]


def test_the_sides_of_a_rank_count():
    ids = list(range(6))
    columns = dict.fromkeys(("heads", "relations", "tails"), ids)
    (found,), calls, _ = asked([Question("rank", columns, ("head", "tail"))], most=4)
    assert found == {"ids": ids}
    assert calls == [[[0, 1]], [[2, 3]], [[4, 5]]]


@pytest.mark.parametrize("ids", [(*range(3), 99), (99, *range(6))])
def test_a_part_that_fails_fails_its_question(ids):
    first, other = asked([question(*ids), question(7)], most=3)[0]
    assert other == {"ids": [7]}
    with pytest.raises(ValueError, match="99"):
        raise first


def test_who_goes_away_between_the_parts_costs_no_further_one():
    engine = Gate()

    async def run():
        batcher = Batcher(engine.answers, 4)
        large = asyncio.create_task(batcher.ask(question(*range(100))))
        waiting = [asyncio.create_task(batcher.ask(question(it))) for it in range(200, 210)]
        while not engine.calls:
            await asyncio.sleep(0.001)
        for task in (large, *waiting):
            task.cancel()
        engine.through.release(9)
        return await batcher.ask(question(300))

    assert asyncio.run(run()) == {"ids": [300]}
    assert engine.calls == [[[0, 1, 2, 3]], [[300]]]
