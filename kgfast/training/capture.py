"""Steps of training in CUDA graphs: the host launches a graph, not each kernel.

A replay launches the kernels of the captured step with the same arguments. All that differs between
steps therefore lies in tensors on the device, which the host writes before a replay: the batch, the
learning rate, counts of steps, the seed of the device's generator. The bits are those of the step
without a graph. Memory of a step that does not outlive the step is common to all graphs.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.processes.assignment import Assignment
from kgfast.training.config import Config, is_own

_WARM_UPS = 3  # number that torch's documentation asks for
_WAITS = "called a synchronizing"  # in torch's warning of an operation that waits for the device


class StepGraphs:
    """CUDA graphs of a step, one for each kind of its data.

    A step runs three times before it is captured: memory that outlives a step is then there, and
    kernels are compiled. If a step cannot be captured, ``on_failure`` gets the reason, and all
    steps run without a graph from then on, as they do from the beginning if there is an
    ``obstacle``. A replay counts up the versions of ``changes``, too.
    """

    def __init__(
        self,
        device: torch.device,
        changes: Sequence[Tensor],
        on_failure: Callable[[str], None],
        obstacle: str | None,
    ) -> None:
        self._device, self._changes = device, changes
        self._runs: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._fails = obstacle is not None
        if obstacle:
            on_failure(obstacle)
        elif not self._fails:
            self._stream, self._on_failure = torch.cuda.Stream(device), on_failure

    def run(self, kind: Hashable, step: Callable[[], object]) -> None:
        """Run a step, or replay the graph of its kind.

        Steps of a kind launch the same kernels, which read and write the same memory.
        """
        if kind not in self._graphs and self._runs[kind] == _WARM_UPS:
            try:
                self._graphs[kind] = self._recorded(step)
            except Exception as error:
                # Torch raises a second error at the end of a capture that has failed.
                self._fail(str(error.__context__ or error).partition("\n")[0])
        if kind in self._graphs:
            self._graphs[kind].replay()
            torch.autograd.graph.increment_version(self._changes)
        elif self._fails:
            step()
        else:
            self._runs[kind] += 1
            places = self._warm_up(step)
            if places and self._runs[kind] == _WARM_UPS:
                self._fail(f"the host waits for the device at {places[0]}")

    def clear(self) -> None:
        """Free the graphs and their memory; later steps begin anew."""
        self._graphs, self._runs = {}, Counter()

    def _warm_up(self, step: Callable[[], object]) -> list[str]:
        """Run a step on the stream of captures; return the places where the host waited."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        mode, places = torch.cuda.get_sync_debug_mode(), list[str]()
        try:
            with warnings.catch_warnings(record=True) as caught, torch.cuda.stream(self._stream):
                torch.cuda.set_sync_debug_mode("warn")
                caught.clear()  # torch warns that the mode is a prototype
                warnings.filterwarnings("always", _WAITS)
                step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        current.wait_stream(self._stream)
        for each in caught:
            if _WAITS in str(each.message):
                places.append(f"{each.filename}:{each.lineno}")
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return places

    def _recorded(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        # Other threads may use the device meanwhile: one pins the memory of batches.
        options: dict[str, Any] = {"stream": self._stream, "capture_error_mode": "thread_local"}
        for other in self._graphs.values():
            options["pool"] = other.pool()
        graph = torch.cuda.CUDAGraph()
        # Torch itself leaves the stream only if the capture ends without an error.
        with torch.cuda.stream(self._stream), torch.cuda.graph(graph, **options):
            step()
        return graph

    def _fail(self, reason: str) -> None:
        self._fails = True
        self.clear()
        self._on_failure(reason)


def obstacle_of(
    config: Config, device: torch.device, assignment: Assignment, *, defers_checks: bool
) -> str | None:
    """Return why no step of a run is captured; None if nothing is known, empty if that is usual."""
    if config.train.capture == "never" or (config.train.capture == "auto" and device.type == "cpu"):
        return ""
    runs_own_code = is_own(config.model.name) or is_own(config.loss.name)
    is_kvsall = config.train.mode == "kvsall"
    obstacles = {
        f"the device is {device}": device.type != "cuda",
        "processes exchange gradients": assignment.size > 1,
        "the host reads each loss, as no Triton kernels serve this device": not defers_checks,
        "the host checks the ids of a model or loss of your own": runs_own_code,
        "steps of train.mode kvsall have different numbers of answers": is_kvsall,
    }
    return next((why for why, stands in obstacles.items() if stands), None)
