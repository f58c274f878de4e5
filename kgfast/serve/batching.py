"""Questions that wait while a sweep runs share the next one.

One thread calls the engine, which has all cores. Nothing waits for company: an idle engine takes a
question at once, a busy one finds all that came meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kgfast.serve.engine import Answer, Engine
from kgfast.serve.latency import Metrics
from kgfast.serve.questions import Question

_Waiting = tuple[Question, asyncio.Future[Answer]]


class Batcher:
    """The queue before an engine; a context in which it works.

    Parameters
    ----------
    engine : Engine
    most : int
        Queries after which no further question joins a batch.
    metrics : Metrics
    """

    def __init__(self, engine: Engine, most: int, metrics: Metrics) -> None:
        self._engine, self._most, self._metrics = engine, most, metrics
        self._waiting: deque[_Waiting] = deque()
        self._asked: set[asyncio.Future[Answer]] = set()

    async def __aenter__(self) -> "Batcher":
        self._thread = ThreadPoolExecutor(1, "kgfast-engine")
        self._has_work = asyncio.Event()
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        """What was asked is still answered."""
        if self._asked:
            await asyncio.wait(self._asked)
        self._worker.cancel()
        await asyncio.wait([self._worker])
        await asyncio.to_thread(self._thread.shutdown)

    async def ask(self, question: Question) -> Answer:
        """The answer to a question; what its call raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._waiting.append((question, future))
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
            questions = [question for question, _ in batch]
            found = await loop.run_in_executor(self._thread, self._answers, questions)
            for (_, future), answer in zip(batch, found, strict=True):
                if future.done():  # nobody waits any more
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """The oldest question and those that one call answers with it, in their order."""
        batch: list[_Waiting] = []
        others: deque[_Waiting] = deque()
        size = 0
        while self._waiting and size < self._most:
            entry = self._waiting.popleft()
            if entry[1].done():
                continue
            if batch and entry[0].key != batch[0][0].key:
                others.append(entry)
                continue
            batch.append(entry)
            size += len(entry[0])
        self._waiting.extendleft(reversed(others))
        return batch

    def _answers(self, questions: Sequence[Question]) -> list[Answer | BaseException]:
        """An answer or an exception each: a question that fails does not fail others."""
        self._metrics.batches += 1
        self._metrics.queries += sum(map(len, questions))
        try:
            return list(self._engine.answers(questions))
        except Exception as error:
            if len(questions) == 1:
                return [error]
        return [answer for question in questions for answer in self._answers([question])]
