"""The choice of a placement for the processes of a run."""

import torch
import torch.distributed as dist

from kgfast.training.build import device_of
from kgfast.training.config import Config
from kgfast.training.processes.placement import ALONE, Placement


def placed(config: Config) -> tuple[torch.device, Placement]:
    """Return the device and the placement of a config, for one process or for torchrun's."""
    if dist.is_available():
        from kgfast.processes.steps import announced, num_processes

        if num_processes() > 1:
            return announced(_placed_together)(config)
    return device_of(config), ALONE


def _placed_together(config: Config) -> tuple[torch.device, Placement]:
    from kgfast.training.processes.crew import Crew

    device = device_of(config)
    crew = Crew(config.distributed.timeout, device)
    if config.distributed.tables == "sharded":
        from kgfast.training.processes.sharded import Sharded

        return device, Sharded(crew)
    from kgfast.training.processes.replicated import Replicated

    return device, Replicated(crew)
