"""Ctrl-C between steps instead of within one."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Notes the first interrupt, for the trainer to stop after its step; a second one raises.

    Interrupted within an update, a table would be neither of this step nor of the next. Outside of
    the main thread, and where someone else handles the signal, nothing changes.

    Attributes
    ----------
    requested : bool
        Whether the run is to stop.

    Examples
    --------
    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True
