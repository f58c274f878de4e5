"""Processes that work in step: all arrive or learn who is missing, and all succeed or raise.

Each process leaves a note of every step in the store of ``torch.distributed``, which outlives a
lost process. Numbers go through collectives of a gloo group. Failures of gloo are exceptions, those
of nccl end the process. Traffic does not grow with the table.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from numbers import Real
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from kgfast.text import shown

Result = TypeVar("Result")
_ERROR = "!"  # prefix of errors among notes
_TOLD = "kgfast_told"  # attribute of an error that all other processes know already
_LONGEST = 1e9  # seconds, 30 years: clocks of stores and groups count nanoseconds in 64 bits


class LostProcessError(RuntimeError):
    """Error for processes that ended, hang or never came.

    Attribute ``ranks``: the missing processes; empty if the store cannot be reached.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class OtherProcessError(RuntimeError):
    """Error for a call in which another process failed; ``kind`` is the class of its error."""

    kind = ""


class Processes:
    """All processes of one call; this process has number ``rank`` among ``size``.

    Each process numbers its calls in the store, and calls of one number belong together. On exit
    the context tells an error to other processes, and destroys the groups. At each step a process
    waits ``timeout`` seconds for all other processes.
    """

    def __init__(self, call: str, timeout: float) -> None:
        check_timeout(timeout)
        join()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.timeout, self._call = timeout, call
        store = _get_default_store()
        number = store.add(f"kgfast/calls/{self.rank}", 1)
        self._store = PrefixStore(f"kgfast/{number}", store)
        self._steps = count()
        self._groups: list[dist.ProcessGroup] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave()  # makes a collective fail in which other processes wait
        if error is not None:
            self.tell(error)

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of this process once all succeeded, or raise the error of any."""
        try:
            result = work()
        except Exception as error:
            self.tell(error)
            raise
        self._notes_of_all("")
        return result

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell an error within to other processes; the next collective there raises the error."""
        try:
            yield
        except BaseException as error:
            if not was_told(error):
                self.__exit__(type(error), error, None)
            raise

    def tell(self, error: BaseException) -> None:
        """Come to the next step with an error, and leave without waiting."""
        if was_told(error):
            return
        error.__dict__[_TOLD] = True
        with suppress(RuntimeError):  # no process may be left to hear the error
            note = f"{_ERROR}{type(error).__name__}: {error}"
            self._store.set(f"{next(self._steps)}/{self.rank}", note)

    def agree(self, facts: Mapping[str, str], mine: Any = None) -> list[Any]:
        """Check that all processes have equal facts; return ``mine`` of each process, by rank.

        Raises ValueError in all processes, with the first fact that differs.
        """
        note = json.dumps([{"the call": self._call} | dict(facts), mine])
        said = [json.loads(note) for note in self._notes_of_all(note)]
        expected = said[0][0]
        for rank, (values, _) in enumerate(said):
            for name, value in expected.items():
                if values.get(name) != value:
                    raise ValueError(
                        f"processes 0 and {rank} differ in {name}: {value} and {values.get(name)}"
                    )
        return [value for _, value in said]

    def group(self, backend: str = "gloo") -> dist.ProcessGroup:
        """Make a group of all processes."""
        # checked first, since a group does not say which process is missing
        self.together(lambda: None)
        seconds = timedelta(seconds=self.timeout)
        group: dist.ProcessGroup = dist.new_group(timeout=seconds, backend=backend)
        self._groups.append(group)
        return group

    def sum(self, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Add the values of all processes in place, with equal bits in all."""
        if values.numel():
            self.collective(lambda: dist.all_reduce(values, group=group))
        return values

    def combine(self, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Add float values bit by bit, where one process has each and others have zeros.

        The sum is made on the CPU, in place. No bit changes, not even the sign of a zero.
        """
        self.sum(values.view(torch.int32 if values.dtype == torch.float32 else torch.int64), group)
        return values

    def gather(self, values: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
        """Return the tensors of all processes, of one shape, on the CPU, by rank."""
        parts = [torch.empty_like(values) for _ in range(self.size)]
        if values.numel():
            self.collective(lambda: dist.all_gather(parts, values, group=group))
        return parts

    def leave(self) -> None:
        """Destroy the groups that were made."""
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups.clear()

    def collective(self, run: Callable[[], object]) -> None:
        """Run a collective; if the call fails, find out which process is missing or failed."""
        try:
            run()
        except RuntimeError as error:
            self._notes_of_all("")  # raises if a process is missing or failed
            raise LostProcessError(
                f"processes lost each other, though all are running: {error!s:.200}"
            ) from error

    def _notes_of_all(self, note: str) -> list[str]:
        """Wait until all processes reach this step; return the notes, or raise a noted error."""
        step = next(self._steps)
        keys = [f"{step}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], note)
            missing: tuple[int, ...] = ()
            try:
                self._store.wait(keys, timedelta(seconds=self.timeout))
            except RuntimeError:
                missing = tuple(i for i, key in enumerate(keys) if not self._store.check([key]))
            notes = [] if missing else self._store.multi_get(keys)
            if step and not missing:  # all processes have left the step before
                self._store.delete_key(f"{step - 1}/{self.rank}")
        except RuntimeError as error:
            raise LostProcessError(
                f"process {self.rank} of {self.size} cannot reach the store of torch.distributed "
                f"any more: the process or machine that holds the store is lost ({error!s:.200})"
            ) from error
        if missing:
            names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            raise LostProcessError(
                f"process {names} of {self.size} did not come to step {step} within "
                f"{self.timeout:g} s: lost, hanging, or slower than timeout= allows",
                missing,
            )
        texts = [note.decode() for note in notes]
        errors = {i: text[1:] for i, text in enumerate(texts) if text.startswith(_ERROR)}
        if errors:
            first = min(errors)
            others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            lost = OtherProcessError(f"process {first} of {self.size}{others}: {errors[first]}")
            lost.kind = errors[first].partition(":")[0]
            raise lost
        return texts


def was_told(error: BaseException) -> bool:
    """Return whether all other processes know an error already."""
    return isinstance(error, OtherProcessError) or _TOLD in error.__dict__


def check_timeout(timeout: Any) -> None:
    """Check a number of seconds."""
    number: Any = timeout  # types of numbers have no order
    if not (isinstance(timeout, Real) and 0 < number <= _LONGEST):
        raise ValueError(
            f"timeout must be a positive number of seconds, at most {_LONGEST:g}; got "
            f"{shown(timeout)}"
        )


def num_processes() -> int:
    """Return the number of processes, by torch.distributed or torchrun."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1


def join() -> None:
    """Join the processes that torchrun started, unless this one has joined."""
    if dist.is_initialized():
        return
    if not dist.is_torchelastic_launched():
        raise RuntimeError(
            "kgfast.distributed runs in several processes: start this program with torchrun "
            "--nproc-per-node=N, or call torch.distributed.init_process_group first"
        )
    dist.init_process_group("gloo")
