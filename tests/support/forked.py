"""Processes forked from a server of one thread that has loaded the trainer.

Loading takes longer than the tests' work, and a fork of this process, which has threads, is not
safe. Their functions are found by name: these stand in ``support``.
"""

import multiprocessing
import os
import sys
import textwrap
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
# pytest is loaded again as the main module of each of them; optimizers of torch load its compiler.
PROCESSES.set_forkserver_preload(
    ["pytest", "torch.distributed", "torch._dynamo", "kgfast.training.trainer"]
)


def start(
    script: str, *prelude: str, arguments: Sequence[Any] = (), folder: Path
) -> ForkServerProcess:
    """Start ``script``, indented as one likes, after the ``prelude``, with torch and kgfast loaded.

    Files ``output`` and ``errors`` in the folder get what it writes.
    """
    text = "\n".join(textwrap.dedent(part) for part in (*prelude, script))
    given = text, [str(it) for it in arguments], folder
    process = PROCESSES.Process(target=_run, args=given)
    process.start()
    return process


def printed_by(
    script: str, *prelude: str, arguments: Sequence[Any] = (), timeout: float = 60, ends: int = 0
) -> str:
    """Return the output of a script, which :func:`start` takes; ``ends`` is its exit code."""
    with TemporaryDirectory() as name:
        process = start(script, *prelude, arguments=arguments, folder=Path(name))
        process.join(timeout)
        process.kill()
        process.join()
        output, errors = (Path(name, it).read_text() for it in _STREAMS)
    assert process.exitcode == ends, f"exit code {process.exitcode}: {errors[-4000:]}"
    return output


_STREAMS = "output", "errors"


def _run(script: str, arguments: list[str], folder: Path) -> None:
    for number, name in enumerate(_STREAMS, start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    sys.argv[:] = ["-c", *arguments]
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
