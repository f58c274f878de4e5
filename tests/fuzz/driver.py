"""Hands cases to worker processes, watches over them, and counts what was found."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fuzz.case import Kind
from fuzz.kinds import KINDS
from fuzz.surroundings import worker_environment

REPORTS = ("AddressSanitizer", "ThreadSanitizer", "runtime error:")  # the last is UBSan's
WORKER = ["-m", "fuzz.worker"]
_START = 600.0  # seconds for a worker to import what it needs
_KEPT = 200  # findings in a results file; all are counted


@dataclass
class Tally:
    """Counts of the cases of a kind."""

    group: str
    cases: int = 0
    wrong: int = 0
    crashes: int = 0
    hangs: int = 0
    reports: int = 0
    seconds: float = 0.0

    @property
    def findings(self) -> int:
        return self.wrong + self.crashes + self.hangs + self.reports


@dataclass
class Attack:
    """One run of the fuzz, with ``counts`` cases of each kind."""

    seed: int
    counts: Mapping[str, int]
    say: Callable[[str], None]
    workers: int = 2
    patience: float = 1.0  # a case may take this many times as long as usual
    deadline: float = float("inf")  # by time.monotonic(); no chunk begins after the deadline
    environment: Mapping[str, str] = field(default_factory=dict)
    options: str = ""  # options of a command that repeats a case
    launcher: Sequence[str] = ()  # words before the command of a worker
    first: int = 0  # cases before this number are left out
    tallies: dict[str, Tally] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        for name in self.counts:
            self.tallies[name] = Tally(KINDS[name].group)
        self._lock, self._chunks = threading.Lock(), self._all_chunks()
        threads = [threading.Thread(target=self._serve) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _all_chunks(self) -> Iterator[tuple[Kind, int, int]]:
        """Yield chunks of the kinds in turns, so that a run that ends early has seen all."""
        rounds = 40
        for turn in range(rounds):
            for name, count in self.counts.items():
                first, end = count * turn // rounds, count * (turn + 1) // rounds
                first = max(first, self.first)
                if first < end:
                    yield KINDS[name], first, end

    def _next(self) -> tuple[Kind, int, int] | None:
        with self._lock:
            return None if time.monotonic() > self.deadline else next(self._chunks, None)

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (chunk := self._next()) is not None:
            kind, first, end = chunk
            while first < end:
                worker = worker or _Worker(self.environment, self.launcher)
                first = self._watch(worker, kind, first, end)
                if not worker.is_alive:
                    worker = None
        if worker is not None:
            worker.end()

    def _watch(self, worker: "_Worker", kind: Kind, first: int, end: int) -> int:
        """Run cases in a worker; return the number of the first that has not been run."""
        tally, number, begun = self.tallies[kind.name], first, time.monotonic()
        worker.order(kind=kind.name, seed=self.seed, first=first, end=end)
        while True:
            event = worker.event(self.patience * kind.seconds if worker.is_ready else _START)
            worker.is_ready = True
            if event is not None and "ready" in event:
                continue
            if event is not None and "begins" in event:
                number, begun = event["begins"], time.monotonic()
                continue
            if event is not None and "done" in event:
                return end
            with self._lock:
                tally.seconds += time.monotonic() - begun
                tally.cases += 1
            if event is None:
                self._found(kind, number, worker.post_mortem())
                return number + 1
            if event["finding"]:
                self._found(kind, number, event["finding"])

    def _found(self, kind: Kind, number: int, finding: dict[str, Any]) -> None:
        with self._lock:
            tally = self.tallies[kind.name]
            counter = {"wrong": "wrong", "crash": "crashes", "hang": "hangs", "report": "reports"}
            name = counter[finding["what"]]
            setattr(tally, name, getattr(tally, name) + 1)
            again = f"make fuzz CASE='{kind.name}:{number}' SEED={self.seed}{self.options}"
            row = {"kind": kind.name, "number": number, **finding, "again": again}
            if len(self.findings) < _KEPT:
                self.findings.append(row)
            self.say(f"{finding['what'].upper()} {finding['message'][:600]}")
            self.say(f"  drawn: {finding.get('drawn', '')[:500]}\n  again: {again}")


class _Worker:
    """A process of :mod:`fuzz.worker`, in a session of its own."""

    def __init__(self, environment: Mapping[str, str], launcher: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115, closed with the worker
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [*launcher, sys.executable, *WORKER, str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            start_new_session=True,
            env=worker_environment(environment),
            text=True,
        )
        os.close(write)
        self._events, self._rest = read, b""
        self.is_alive, self.is_ready, self._hangs = True, False, False

    def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the events say so, too

    def event(self, seconds: float) -> dict[str, Any] | None:
        """Read the next event; None if the worker died, or none came in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._events], [], [], left)[0]:
                self._hangs = True
                return None
            more = os.read(self._events, 1 << 16)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def post_mortem(self) -> dict[str, Any]:
        """End the worker, and say what it died of."""
        if self._hangs:
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints where it was
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        self.end()
        what = "hang" if self._hangs else "crash"
        begin = min((place for it in REPORTS if (place := text.find(it)) >= 0), default=-1)
        if begin >= 0:
            what, shown = "report", text[max(0, begin - 30) : begin + 3000]
        else:
            shown = text[-2500:]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"what": what, "message": f"{how}: {shown.strip()}"}

    def end(self) -> None:
        """End the worker and whatever it started."""
        self.is_alive = False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        os.close(self._events)
