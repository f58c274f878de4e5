"""Which placement a run has: what started its processes, and what its config says."""

import torch
import torch.distributed as dist

from kgfast.training.build import device_of
from kgfast.training.config import Config
from kgfast.training.parallel.placement import ALONE, Placement


def placed(config: Config) -> tuple[torch.device, Placement]:
    """Return the device and the placement of a config: of several processes, or of one.

    What is wrong in one of several processes is told to the others.

    Raises
    ------
    RuntimeError
        Where processes cannot find each other.
    """
    if dist.is_available():
        from kgfast.eval.meeting import announced, num_processes

        if num_processes() > 1:
            return announced(_placed_together)(config)
    return device_of(config), ALONE


def _placed_together(config: Config) -> tuple[torch.device, Placement]:
    from kgfast.training.parallel.crew import Crew

    device = device_of(config)
    crew = Crew(config.distributed.timeout, device)
    if config.distributed.tables == "sharded":
        from kgfast.training.parallel.sharded import Sharded

        return device, Sharded(crew)
    from kgfast.training.parallel.replicated import Replicated

    return device, Replicated(crew)
