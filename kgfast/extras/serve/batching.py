"""Questions that arrive during a sweep share the next sweep.

One thread calls the engine, which has all cores. An idle engine takes a question at once. A busy
engine next takes the oldest question, and others of its kind that arrived meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kgfast.extras.serve.engine import Answer, Question

Waiting = tuple[Question, asyncio.Future[Answer]]


class Batcher:
    """Queue before an engine.

    ``call`` answers questions of one key. ``most`` limits the queries of questions that share a
    call. ``calls`` and ``queries`` count the calls and their queries.
    """

    def __init__(self, call: Callable[[Sequence[Question]], list[Answer]], most: int) -> None:
        self._call, self._most = call, most
        self.calls = self.queries = 0
        self._waiting: deque[Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "kgfast-engine")
        self._worker: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """Return the answer to a question, or raise the error of the call."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._next()
            questions = [question for question, _ in batch]
            answers = await loop.run_in_executor(self._thread, self._answers, questions)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # the request was cancelled
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _next(self) -> list[Waiting]:
        """Return the questions for one call: the oldest, and others that are alike and fit."""
        batch = [self._waiting.popleft()]
        key, room = batch[0][0].key, self._most - len(batch[0][0])
        for waiting in list(self._waiting):
            if waiting[0].key == key and len(waiting[0]) <= room:
                room -= len(waiting[0])
                batch.append(waiting)
                self._waiting.remove(waiting)
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
