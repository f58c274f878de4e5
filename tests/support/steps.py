"""Counting what a step of the trainer launches and waits for, without a GPU."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from kgfast.training.loop import Run
from support.small_runs import GRAPH, sections_of_table, trainer_of
from support.waits import CountsStep, LiveMemory, pretended_triton

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
    """Device that counts waits for values, too: each is 1, distinct ids as many as there are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in ("_unique2", "_local_scalar_dense") or not args[0].is_meta:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.waits[name] += 1
        if name == "_local_scalar_dense":
            return torch.ones((), dtype=args[0].dtype, device="cpu").item()
        (self.within if self._depth else self.seen)[name] += 1
        ids = args[0].flatten()
        return torch.empty_like(ids), torch.empty_like(args[0]), torch.empty_like(ids)


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


def count(sections: Mapping[str, Any]) -> Counted:
    """Count the second step of a run whose model is on a device that computes nothing."""
    trainer = trainer_of(**sections)
    with (
        pretended_triton() as kernels,
        patch.object(torch, "Generator", _HostGenerator),
        CountsWaits() as device,
    ):
        run = Run(trainer.config, GRAPH, trainer.model.to("meta"))
        run.make_step()
        counters = kernels, device.seen, device.within, device.waits
        for counter in counters:
            counter.clear()
        before = device.live()
        run.make_step()
        found = Counted(*map(Counter, counters), device.live() - before)
        run.close()
    return found


def rows() -> Iterator[dict[str, Any]]:
    """Yield the row of each mode in static-step-counts.json."""
    for mode, (sections, goal) in MODES.items():
        found = count(sections)
        numbers = {name: it.total() for name, it in found._asdict().items() if name != "kept"}
        yield {"mode": mode, **numbers, "together": found.together, "goal": goal}
