"""The run of a trainer whose steps a benchmark makes itself."""

from kgfast.training import Trainer
from kgfast.training.run import Job, Run


def bare_run(trainer: Trainer) -> Run:
    """Return a run in training mode, without a folder, progress and evaluations of its own."""
    evaluate, placement = trainer.evaluate, trainer.placement
    run = Run(Job(trainer.config, trainer.dataset, trainer.model, evaluate, placement))
    trainer.model.train()
    return run


def steps(run: Run, count: int) -> None:
    """Make steps."""
    for _ in range(count):
        run.make_step()
