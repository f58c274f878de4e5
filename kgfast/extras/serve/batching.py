"""Questions that arrive during a sweep share the next sweep; large ones are answered in parts.

One thread calls the engine, which has all cores. An idle engine takes a question at once. A busy
engine next takes all questions that arrived meanwhile. After each part, the rest of a question goes
to the end of the queue: any question delays another by at most one batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kgfast.extras.serve.engine import Answer
from kgfast.extras.serve.latency import Metrics
from kgfast.extras.serve.questions import Question

Call = Callable[[Sequence[Question]], list[Answer]]


@dataclass
class _Pending:
    """Question, and the answers to finished parts."""

    question: Question
    future: asyncio.Future[Answer]
    done: int = 0
    answers: list[Answer] = field(default_factory=list)


class Batcher:
    """Queue before an engine, and the context of its work.

    ``call`` answers questions of one key. ``most`` limits the queries of a call; a question with
    several sides counts for each.
    """

    def __init__(self, call: Call, most: int, metrics: Metrics) -> None:
        self._call, self._most, self._metrics = call, most, metrics
        self._waiting: deque[_Pending] = deque()
        self._asked: set[asyncio.Future[Answer]] = set()

    async def __aenter__(self) -> "Batcher":
        self._thread = ThreadPoolExecutor(1, "kgfast-engine")
        self._has_work = asyncio.Event()
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer all questions in the queue, then stop."""
        if self._asked:
            await asyncio.wait(self._asked)
        self._worker.cancel()
        await asyncio.wait([self._worker])
        await asyncio.to_thread(self._thread.shutdown)

    async def ask(self, question: Question) -> Answer:
        """Return the answer to a question, or raise the error of the call.

        After a cancellation no further part of the question is computed.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._waiting.append(_Pending(question, future))
        self._has_work.set()
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            batch = self._next()
            if not batch:
                self._has_work.clear()
                continue
            parts = [part for _, part in batch]
            found = await loop.run_in_executor(self._thread, self._answers, parts)
            for (asked, part), answer in zip(batch, found, strict=True):
                self._take(asked, part, answer)

    def _next(self) -> list[tuple[_Pending, Question]]:
        """Return the parts for one call: of the oldest question, and of others that fit."""
        batch: list[tuple[_Pending, Question]] = []
        others: deque[_Pending] = deque()
        room = self._most
        while self._waiting and room > 0:
            asked = self._waiting.popleft()
            if asked.future.done():  # no client waits any more
                continue
            sides = max(1, len(asked.question.sides))
            part = asked.question.part(asked.done, asked.done + max(1, self._most // sides))
            queries = len(part) * sides
            # A part of a large question does not fill up a batch of other questions, which would
            # wait for it.
            if batch and (asked.question.key != batch[0][1].key or queries > room):
                others.append(asked)
                continue
            batch.append((asked, part))
            room -= queries
        self._waiting.extendleft(reversed(others))
        return batch

    def _take(self, asked: _Pending, part: Question, answer: Answer | BaseException) -> None:
        """Store the answer to a part; with the last part, pass the whole answer on."""
        if asked.future.done():
            return
        if isinstance(answer, BaseException):
            asked.future.set_exception(answer)
            return
        asked.answers.append(answer)
        asked.done += len(part)
        if asked.done < len(asked.question):
            self._waiting.append(asked)
        else:
            asked.future.set_result(_joined(asked.answers))

    def _answers(self, questions: Sequence[Question]) -> list[Answer | BaseException]:
        """Return an answer or an exception for each: a failing question fails no other."""
        self._metrics.batches += 1
        self._metrics.queries += sum(map(len, questions))
        try:
            return list(self._call(questions))
        except Exception as error:
            if len(questions) == 1:
                return [error]
        return [answer for question in questions for answer in self._answers([question])]


def _joined(parts: list[Answer]) -> Answer:
    """Join the answers to all parts in order."""
    return {
        key: [it for part in parts for it in part[key]] if isinstance(value, list) else value
        for key, value in parts[0].items()
    }
