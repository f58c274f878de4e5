"""Scripts of threads, forks, signals and little memory, each for a process of its own."""

PRELUDE = """
import os, resource, signal, sys, threading, time
import torch
from kgfast import ops
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
}
