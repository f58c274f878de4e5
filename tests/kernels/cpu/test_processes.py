"""Threads, forks, signals, the end of the interpreter, and memory limits, of the CPU backend."""

import os
import signal
import time
from pathlib import Path

import pytest

from kgfast.kernels import cpu
from support.forked import printed_by, start
from support.process_scripts import PRELUDE as SCRIPT_PRELUDE
from support.process_scripts import SCRIPTS
from support.processes import finish, run_script
from support.serving import wait_for

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
needs_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")

PRELUDE = """
    import os, signal, sys, threading, time, torch
    torch.set_num_threads(3)
    from support.flat import cpu
    rank_counts, topk = cpu.rank_counts, cpu.topk
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it

    def known(batch):
        return torch.zeros(batch + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)

    def greater():  # seven; of several panels, so that the pool's threads take part
        table = torch.arange(400.0)[:, None]
        return rank_counts(torch.zeros(1, 1), table, torch.tensor([7]), *known(1), "l1")[0].item()

    wide = torch.randn(60_000, 64)

    def sweep(batch=1024):  # a second
        targets = torch.zeros(batch, dtype=torch.int64)
        return rank_counts(wide[:batch], wide, targets, *known(batch), "rotate")
"""


def test_interrupting_a_long_sweep(tmp_path):
    script = """
        from pathlib import Path

        try:
            Path(sys.argv[1]).touch()
            while True:
                sweep(20_000)
        except KeyboardInterrupt:
            print("interrupted")
    """
    begun = tmp_path / "begun"
    process = start(script, PRELUDE, arguments=[begun], folder=tmp_path)
    wait_for(lambda: begun.exists() or not process.is_alive())
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    process.join(30)  # one sweep alone takes far longer than its 50 ms checks
    process.kill()
    assert process.exitcode == 0, (tmp_path / "errors").read_text()
    assert (tmp_path / "output").read_text() == "interrupted\n"


@pytest.mark.parametrize(
    "name",
    [
        *("forks", "signals"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("threads", "interrupts")),
        # A thread that is within an operator of torch ends the process, now and then.
        pytest.param("exit", marks=pytest.mark.slow),
    ],
)
def test_scripts_of_the_attack(name):
    """Threads that resize the pool; forks, signals and interrupts amid sweeps; the end amid one."""
    given = {"threads": 3, "seed": 0, "rows": 30_000, "batch": 64, "width": 16, "k": 10}
    text = (SCRIPT_PRELUDE + SCRIPTS[name]).format_map(
        given | {"score": "l1", "count": 2, "pause": 0.02}
    )
    assert printed_by(text, timeout=150) == ""


@pytest.mark.slow
def test_a_child_forked_by_a_handler_does_not_wait_for_its_parents_threads():
    """The child comes back into a sweep whose threads are not there."""
    process = run_script(
        """
        parent, children = os.getpid(), []

        def handler(*_):
            child = os.fork()
            if child:
                children.append(child)
            else:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)

        signal.signal(signal.SIGALRM, handler)
        try:
            while not children:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                sweep(8192)  # long: the handler is to fork in its midst
        except RuntimeError as error:
            os._exit(5 if os.getpid() != parent and greater() == 7 else 1)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        """,
        PRELUDE,
    )
    assert finish(process, timeout=90) == "[5]\n"


@needs_linux
@pytest.mark.parametrize(
    ("rows", "k", "batch"),
    [(75_000, 60_000, 3), pytest.param(20_000, 4_000, 24, marks=pytest.mark.slow)],
    ids=["k like the table", "a table of like rows"],
)
def test_memory_that_a_worker_does_not_get_is_an_error(rows, k, batch):
    """Under limits from less than the results take to more than all of it does."""
    script = f"""
        import resource

        def limit(numbers):
            resource.setrlimit(resource.RLIMIT_AS, (numbers, resource.RLIM_INFINITY))

        def size():
            return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

        table = torch.zeros({rows}, 1)
        greater(), topk(table[:4], table[:4000], 3)  # the pool is there
        ends = set()
        for spare in range(1 << 19, 50 << 20, 5 << 19):
            limit(size() + spare)
            try:
                assert topk(table[:{batch}], table, {k})[1][-1, -1] == {k} - 1
                ends.add("served")
            except MemoryError:
                ends.add("refused")
            except RuntimeError as error:
                assert "allocate memory" in str(error)  # torch's own, for the results
            limit(resource.RLIM_INFINITY)
            assert greater() == 7
        print(sorted(ends))
    """
    assert printed_by(script, PRELUDE, timeout=240) == "['refused', 'served']\n"
