"""Work of several processes in step: calls of ``kgfast.distributed``, and training.

:mod:`steps` holds the processes of one call, which wait for each other and raise each other's
errors. :mod:`shares` divides a ranking among them; :mod:`ranges` needs no processes in step.
:mod:`assignment` says how a run of training is divided, and :mod:`together` divides its steps.
"""

import torch.distributed as dist

from kgfast.processes.assignment import ALONE, Assignment


def assignment_of(timeout: float) -> Assignment:
    """Return the share of this process in a run: all of it, or one of those of torchrun."""
    if dist.is_available():
        from kgfast.processes.steps import num_processes

        if num_processes() > 1:
            from kgfast.processes.together import Together

            return Together(timeout)
    return ALONE
