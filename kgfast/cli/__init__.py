"""The command line: ``kgfast train``, ``evaluate``, ``predict``, ``explain``, ``search`` and more.

Each file adds its commands to the app of ``common.py``, and loads torch only when a command runs.
"""

import io
import sys

from kgfast.cli import (  # noqa: F401  each adds its commands
    conversion,
    evaluation,
    explanation,
    prediction,
    search,
    serving,
    training,
)
from kgfast.cli.common import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; escape characters that the output lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
