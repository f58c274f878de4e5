"""Which placement a run has: what started its processes, and what its config says."""

import os

import torch
import torch.distributed as dist

from kgfast.training.config import Config
from kgfast.training.parallel.placement import ALONE, Placement


def placement_of(config: Config, device: torch.device) -> Placement:
    """That of a config, where torchrun started several processes; else that of one.

    Raises
    ------
    RuntimeError
        Where processes cannot find each other.
    """
    if _num_processes() == 1:
        return ALONE
    from kgfast.training.parallel.crew import Crew

    crew = Crew(config.distributed.timeout, device)
    if config.distributed.tables == "sharded":
        from kgfast.training.parallel.sharded import Sharded

        return Sharded(crew)
    from kgfast.training.parallel.replicated import Replicated

    return Replicated(crew)


def _num_processes() -> int:
    """How many train together, by torch.distributed or by what torchrun says."""
    if not dist.is_available():
        return 1
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1
