"""Counting what a step of the trainer launches and waits for, without a GPU."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from kgfast.training import trainer as loop
from kgfast.training.capture import obstacle_of
from kgfast.training.trainer import Trainer
from support.small_runs import sections_of_table, trainer_of
from support.waits import CountsStep, LiveMemory, has_storage, key_of, pretended_triton

# Keys of a config, and the most kernels and operators that a step should have.
_GOALS = (30, 35, 30, 30, None, 160)
_TABLE = sections_of_table("""
RotatE, nssa, shared negatives
    optim.name=row_adam
RotatE, nssa, negatives of each row
    data.negatives=per_row  optim.name=row_adam
ComplEx, cross entropy, 1-vs-all
    model.name=complex  model.gamma=12  train.mode=1vsall  loss.name=cross_entropy
ComplEx, bce, KvsAll
    model.name=complex  model.gamma=12  train.mode=kvsall  loss.name=bce
ConvE, bce, KvsAll
    model.name=conve  model.base_dim=64  model.embedding_height=8  model.gamma=12
    train.mode=kvsall  loss.name=bce
MED and RSCF, nssa, shared negatives
    model.name=rotate  model.use_rscf=true  med.dims=[4,8,16]  med.submodels_per_step=3
    optim.name=row_adam
""")
MODES: dict[str, tuple[dict[str, Any], int | None]] = {
    mode: (sections, goal) for (mode, sections), goal in zip(_TABLE.items(), _GOALS, strict=True)
}


class CountsWaits(CountsStep, LiveMemory):
    """Device that counts waits for values, too: each is 1, distinct ids as many as there are.

    ``trace`` has all operations and launches since it was emptied, with their arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[object] = []
        self.kept: set[int] = set()
        self._new: dict[int, object] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, inputs = func.overloadpacket.__name__, tree_leaves((args, kwargs))
        self.note(name, (args, kwargs))
        known = {key_of(leaf) for leaf in inputs if has_storage(leaf)}
        result = self._dispatch(name, func, types, args, kwargs)
        for leaf in tree_leaves(result):
            if has_storage(leaf) and key_of(leaf) not in known:
                self._new[key_of(leaf)] = len(self.trace)
        return result

    def _dispatch(self, name: str, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if name not in ("_unique2", "_local_scalar_dense") or not args[0].is_meta:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.waits[name] += 1
        if name == "_local_scalar_dense":
            return torch.ones((), dtype=args[0].dtype, device="cpu").item()
        (self.within if self._depth else self.seen)[name] += 1
        ids = args[0].flatten()
        return torch.empty_like(ids), torch.empty_like(args[0]), torch.empty_like(ids)

    def begin(self) -> None:
        """Begin a trace."""
        self.trace, self._new, self.kept = [], {}, set()

    def note(self, name: str, arguments: object) -> None:
        """Add a line to the trace."""
        leaves, structure = tree_flatten(arguments)
        self.trace.append((name, str(structure), [self._label(leaf) for leaf in leaves]))

    def _label(self, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return str(leaf)
        if leaf.is_sparse:
            return "sparse", *map(self._label, (leaf._indices(), leaf._values()))
        if not leaf.is_meta:
            return "host", leaf.flatten()[:9].tolist()
        key = key_of(leaf)
        place = self._new.get(key, ("kept", key))
        self.kept |= {key} - self._new.keys()
        return place, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype


class _HostGenerator(torch.Generator):
    """Generator that a device without values has none of."""

    def __new__(cls, device: object = None) -> "_HostGenerator":
        return super().__new__(cls)


class Counted(NamedTuple):
    """Requests of a step to a GPU; operators are those of torch that launch something."""

    kernels: Counter[str]
    operators: Counter[str]
    within: Counter[str]  # operators within those of kgfast
    waits: Counter[str]
    kept: int  # bytes that outlive the step, beyond those that were there

    @property
    def together(self) -> int:
        """Number that a goal is about."""
        return self.kernels.total() + self.operators.total()


@contextmanager
def pretended(sections: Mapping[str, Any]) -> Iterator[tuple[Trainer, CountsWaits, Counter[str]]]:
    """Yield a run whose model is on a device that computes nothing, the device, and kernels.

    The run has the graphs of a GPU, each of which runs the step again and traces it.
    """
    from kgfast.kernels.triton.host import launch

    class Traced:
        def __init__(self, *_: object) -> None:
            self.traces: dict[Hashable, list[object]] = {}
            self.kept: set[int] = set()

        def run(self, kind: Hashable, step: Callable[[], object]) -> None:
            device.begin()
            step()
            self.traces.setdefault(kind, []).append(device.trace)
            self.kept |= device.kept
            device.begin()

        def clear(self) -> None:
            pass

    def obstacle(config: Any, there: torch.device, *rest: Any, **options: Any) -> str | None:
        return obstacle_of(config, torch.device("cuda"), *rest, **options)

    trainer = trainer_of(**sections)
    with (
        pretended_triton() as kernels,
        patch.object(torch, "Generator", _HostGenerator),
        patch.object(loop, "StepGraphs", Traced),
        patch.object(loop, "obstacle_of", obstacle),
        CountsWaits() as device,
    ):
        inner = launch.launch

        def note(kernel: Any, grid: Any, args: Any, **options: Any) -> None:
            inner(kernel, grid, args, **options)
            device.note(kernel.__name__, (grid, args, options))

        with patch.object(launch, "launch", note):
            trainer.model.to("meta")
            trainer.begin()
            yield trainer, device, kernels
            trainer.close()


def count(sections: Mapping[str, Any]) -> Counted:
    """Count the third step of a run, the second of its side."""
    with pretended(sections) as (run, device, kernels):
        for _ in range(2):
            run.make_step()
        counters = kernels, device.seen, device.within, device.waits
        for counter in counters:
            counter.clear()
        before = device.live()
        run.make_step()
        return Counted(*map(Counter, counters), device.live() - before)


def traces(sections: Mapping[str, Any]) -> list[tuple[object, object]]:
    """Return for each kind of batch what its second and its third step ask a device for.

    All memory that outlives a step belongs to the run: nothing replaces what a graph reads.
    """
    with pretended(sections) as (run, _, _):
        for _ in range(6):
            run.make_step()
        optimizer, batches = run._optimizer, [there for _, there in run._ahead._placed.values()]
        states = [*optimizer._optimizer.state.values()]
        holders = [run.model.state_dict(), run._loss_sum, batches, states]
        holders += [optimizer._optimizer.param_groups[0]["lr"], optimizer.constants._made]
        held = {key_of(leaf) for leaf in tree_leaves(holders) if has_storage(leaf)}
        assert run._graphs.kept <= held
        return [tuple(of_kind[1:3]) for of_kind in run._graphs.traces.values() if len(of_kind) > 2]


def rows() -> Iterator[dict[str, Any]]:
    """Yield the row of each mode in static-step-counts.json."""
    for mode, (sections, goal) in MODES.items():
        found = count(sections)
        numbers = {name: it.total() for name, it in found._asdict().items() if name != "kept"}
        yield {"mode": mode, **numbers, "together": found.together, "goal": goal}
