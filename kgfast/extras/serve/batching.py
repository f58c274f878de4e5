"""Questions that arrive during a sweep share the next sweep; large ones are answered in parts.

One thread calls the engine, which has all cores. An idle engine takes a question at once. A busy
engine next takes all questions that arrived meanwhile. After each part, the rest of a question goes
to the end of the queue: any question delays another by at most one batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kgfast.extras.serve.engine import Answer, Question

Call = Callable[[Sequence[Question]], list[Answer]]


class Batcher:
    """Queue before an engine.

    ``call`` answers questions of one key. ``most`` limits the queries of a call; a question with
    several sides counts for each. ``calls`` and ``queries`` count the calls and their queries.
    """

    def __init__(self, call: Call, most: int) -> None:
        self._call, self._most = call, most
        self.calls = self.queries = 0
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._thread = ThreadPoolExecutor(1, "kgfast-engine")
        self._worker: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """Return the answer to a question, or raise the error of the call.

        After a cancellation no further part of the question is computed.
        """
        size = max(1, self._most // max(1, len(question.sides)))
        parts = [
            await self._ask(question.part(start, start + size))
            for start in range(0, len(question), size)
        ]
        return {
            key: [row for part in parts for row in part[key]] if isinstance(value, list) else value
            for key, value in parts[0].items()
        }

    async def _ask(self, part: Question) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            parts = [part for part, _ in batch]
            answers = await loop.run_in_executor(self._thread, self._answers, parts)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # the client hung up
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _next(self) -> list[tuple[Question, asyncio.Future[Answer]]]:
        """Return the parts for one call: the oldest, and others that are alike and fit."""
        batch: list[tuple[Question, asyncio.Future[Answer]]] = []
        others = deque[tuple[Question, asyncio.Future[Answer]]]()
        room = self._most
        while self._waiting and room > 0:
            part, future = self._waiting.popleft()
            if future.done():  # no client waits any more
                continue
            queries = len(part) * max(1, len(part.sides))
            if batch and (part.key != batch[0][0].key or queries > room):
                others.append((part, future))
                continue
            batch.append((part, future))
            room -= queries
        self._waiting.extendleft(reversed(others))
        return batch

    def _answers(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """Return an answer or an exception for each: a failing question fails no other."""
        self.calls += 1
        self.queries += sum(map(len, questions))
        try:
            return list(self._call(questions))
        except Exception as error:
            if len(questions) == 1:
                return [error]
        return [answer for question in questions for answer in self._answers([question])]
