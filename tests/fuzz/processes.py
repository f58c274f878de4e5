"""Threads, forks, signals, limits of memory and ends of processes, each in a process of its own."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

import kgfast
from fuzz.case import Case, expect
from fuzz.surroundings import worker_environment
from kgfast.distributed import OtherProcessError
from support.gloo import run_together
from support.ranked_together import planned, shuffled
from support.shared_out import N, assert_same, example, tables_of

PRELUDE = """
import os, resource, signal, sys, threading, time
import torch
from kgfast import ops
from kgfast.kernels.ieee import ieee_arithmetic
import kgfast
torch.set_num_threads({threads})
generator = torch.Generator().manual_seed({seed})
rows, batch, width = {rows}, {batch}, {width}
table = torch.randn(rows, width, generator=generator)
queries = torch.randn(batch, width, generator=generator)
targets = torch.randint(rows, (batch,), generator=generator)
none = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
def ranked():
    return torch.stack(ops.rank_counts(queries, table, targets, *none, "{score}"))
def found():
    return ops.topk(queries, table, {k}, score="{score}")[1]
def scored():
    return ops.pairwise_scores(queries, table[:50], "{score}")
calls = [ranked, found, scored]
wanted = [call() for call in calls]
sweeps = threading.Semaphore(0)
def sweep_for_long():  # so that a thread is in the kernel when the process ends, not in torch
    large = torch.randn(200_000, 64)
    asked = torch.zeros(3_000, dtype=torch.int64)
    known = torch.zeros(3_001, dtype=torch.int64), asked[:0]
    sweeps.release()
    while True:
        ops.rank_counts(large[:3_000], large, asked, *known, "{score}")
def same():
    return all(torch.equal(call(), right) for call, right in zip(calls, wanted))
"""
SCRIPTS = {
    # Many Python threads at once, each changing the number of threads.
    "threads": """
bad = []
def work(number):
    for turn in range(6):
        if turn % 3 == number % 3:
            torch.set_num_threads(1 + (number + turn) % 4)
        if not same():
            bad.append(number)
threads = [threading.Thread(target=work, args=(number,)) for number in range({count})]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not bad, bad
""",
    # Forks while other threads sweep; children use the kernels, with one thread of torch.
    "forks": """
stop = False
torch.ones(1 << 20).mul_(2)  # torch has its threads, which a child has not
def sweep():
    while not stop: ranked()
threads = [threading.Thread(target=sweep) for _ in range(2)]
for thread in threads: thread.start()
time.sleep({pause})
codes = []
for _ in range({count}):
    child = os.fork()
    if not child:
        signal.alarm(60)
        with ieee_arithmetic(): pass  # it looks at torch's threads, which a child has not
        torch.set_num_threads({threads})
        os._exit(0 if torch.equal(ranked(), wanted[0]) and torch.equal(found(), wanted[1]) else 3)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop = True
for thread in threads: thread.join()
assert not any(codes), codes
assert same()
""",
    # Handlers that call the kernels while a sweep is going on; the next signal waits for their end.
    "signals": """
ran, over = [], False
def handler(*_):
    ran.append(same())
    if not over: signal.setitimer(signal.ITIMER_REAL, {pause})
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, {pause})
end = time.monotonic() + 1.0
while time.monotonic() < end or not ran:
    assert torch.equal(ranked(), wanted[0])
    assert torch.equal(found(), wanted[1])
over = True
signal.setitimer(signal.ITIMER_REAL, 0)
assert all(ran), ran
""",
    # An interrupt during a sweep is a KeyboardInterrupt, and the next call is right.
    "interrupts": """
signal.signal(signal.SIGINT, signal.default_int_handler)
caught = 0
for turn in range({count}):
    timer = threading.Timer({pause} * (1 + turn % 3), os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        while True: ranked(); found()
    except KeyboardInterrupt:
        caught += 1
    timer.join()
assert caught == {count}
assert same()
""",
    # A daemon thread that sweeps when the process ends.
    "exit": """
for _ in range(2): threading.Thread(target=sweep_for_long, daemon=True).start()
for _ in range(2): sweeps.acquire()
time.sleep(0.3 + {pause})
""",
    # An interrupt while the main thread waits for a sweeping one.
    "join": """
signal.signal(signal.SIGINT, signal.default_int_handler)
thread = threading.Thread(target=sweep_for_long, daemon=True)
thread.start()
sweeps.acquire()
threading.Timer(0.3 + {pause}, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    thread.join()
except KeyboardInterrupt:
    pass
""",
    # Little memory: a MemoryError (or torch's own words for it), or the right answer.
    "memory": """
table = table[:1].repeat(rows, 1)
large = min(rows, {large})
right = ops.topk(queries, table, large, score="{score}")[1]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
refused = 0
for room in {rooms}:
    resource.setrlimit(resource.RLIMIT_AS, (used + room, -1))
    try:
        for call in (lambda: ops.topk(queries, table, large, score="{score}")[1], ranked, scored):
            try:
                got = call()
            except MemoryError:
                refused += 1
            except RuntimeError as error:
                assert "alloc" in str(error) or "memory" in str(error), error
                refused += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    assert torch.equal(ops.topk(queries, table, large, score="{score}")[1], right)
""",
}


def script(case: Case) -> None:
    name = case.choice([it for it in SCRIPTS if it != "memory"])
    _run(case, name)


def memory(case: Case) -> None:
    _run(case, "memory")


def together(case: Case) -> None:
    """Check calls that fail in some of several processes: all others are told.

    No two calls differ in more than the rows of the table.
    """
    world = case.choice((2, 2, 3, 4))
    cuts = sorted(case.pick.randrange(N + 1) for _ in range(world - 1))
    spans = list(pairwise([0, *cuts, N]))
    plan: list[dict[str, Any]] = []
    for number in range(case.pick.randint(2, 6)):
        fails: dict[int, str] = {}
        if case.chance(0.6):
            for rank in case.pick.sample(range(world), case.pick.randint(1, world)):
                fails[rank] = case.choice(("misspelt", "timeout", "id", "NaN", "interrupt"))
        what = case.choice(("rank", "rank", "topk"))
        plan.append({"what": what, "seed": case.number * 10 + number, "fails": fails})
    case.note(spans=spans, plan=plan)
    results = run_together(world, partial(planned, spans, plan), timeout=120 * _patience())
    for rank, result in enumerate(results):
        expect(isinstance(result, list), f"process {rank} of {world}: {result!r}")
    for number, call in enumerate(plan):
        came = [result[number] for result in results]
        # Rows that nobody asks for, or that a process has none of, fail nowhere.
        failed = [rank for rank, one in enumerate(came) if isinstance(one, BaseException)]
        early = [rank for rank, why in call["fails"].items() if why not in ("NaN", "interrupt")]
        expect(set(early) <= set(failed), f"call {number}: {came}")
        if not failed:
            _expect_found(call, came)
            continue
        own = [rank for rank in failed if not isinstance(came[rank], OtherProcessError)]
        expect(len(failed) == world and set(own) <= set(call["fails"]), f"call {number}: {came}")
        for rank in set(failed) - set(own):
            expect(str(came[rank]).startswith(f"process {min(own)} of "), f"call {number}: {came}")


def _expect_found(call: dict[str, Any], came: Sequence[Any]) -> None:
    model = kgfast.DistMult(shuffled(call["seed"]), tables_of("DistMult")[1])
    hrt = example().hrt
    if call["what"] == "rank":
        for ranks in came:
            assert_same(ranks, kgfast.rank(model, hrt))
        return
    expected = kgfast.topk(model, heads=hrt[:, 0], relations=hrt[:, 1], k=5)
    for best in came:
        expect(torch.equal(best.ids, expected.ids), f"{best.ids} and {expected.ids}")
        expect(torch.equal(best.scores, expected.scores), f"{best.scores} and {expected.scores}")


def _run(case: Case, name: str) -> None:
    given: dict[str, Any] = {
        "threads": case.choice((1, 2, 3, 4)),
        "seed": case.pick.randrange(2**31),
        "rows": case.choice((300, 3_000, 30_000)),
        "batch": case.choice((1, 8, 64)),
        "width": case.choice((2, 16, 64)),
        "score": case.choice(("dot", "l1", "rotate")),
        "k": case.choice((1, 10, 200)),
        "count": case.pick.randint(2, 5),
        "pause": round(case.pick.uniform(0.001, 0.05), 4),
        "large": case.choice((10, 1_000, 30_000)),
        "rooms": sorted(case.pick.randrange(1, 64) << 20 for _ in range(3)),
    }
    case.note(script=name, **given)
    text = (PRELUDE + SCRIPTS[name]).format_map(given)
    run_python(text, seconds=150 * _patience())


def _patience() -> int:
    return 8 if "LD_PRELOAD" in os.environ else 1


def run_python(
    text: str, *arguments: str, seconds: float = 150.0, codes: Sequence[int] = (0,)
) -> str:
    """Run a script in a process of its own; returns what it printed.

    A hang is a finding, and so is every other exit code than ``codes``.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=worker_environment({name: os.environ[name] for name in _KEPT if name in os.environ}),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        expect(False, f"it hangs: {output[-2000:]}")
    found = process.returncode
    expect(found in codes, f"exit code {found}, not of {codes}: {output[-2500:]}")
    return output


_KEPT = ("PYTHONPATH", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")


def limit_files(size: int) -> None:
    """Let no file of this process grow past a size, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
