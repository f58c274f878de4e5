"""Processes forked from a server of one thread that has loaded the trainer.

Loading takes longer than the tests' work, and a fork of this process, which has threads, is not
safe. Their functions are found by name: these stand in ``support``.
"""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
# pytest is loaded again as the main module of each of them; optimizers of torch load its compiler.
PROCESSES.set_forkserver_preload(
    ["pytest", "torch.distributed", "torch._dynamo", "kgfast.training.trainer"]
)
