"""The command line: ``kgfast train``, ``evaluate``, ``predict``, ``explain``, ``search`` and more.

One file per kind of command, each of which adds its own to the app of ``common.py``. None loads
torch before its command is called.
"""

import io
import sys

from kgfast.cli import (
    common,
    conversion,
    evaluation,
    explanation,
    graphs,
    planning,
    prediction,
    report,
    search,
    serving,
    training,
)
from kgfast.cli.common import app

__all__ = [
    "app",
    "common",
    "conversion",
    "evaluation",
    "explanation",
    "graphs",
    "main",
    "planning",
    "prediction",
    "report",
    "search",
    "serving",
    "training",
]


def main() -> None:
    """Run the command line. Characters that the output does not have are shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
