"""The run of a trainer whose steps a benchmark makes itself."""

from functools import cached_property

from kgfast.training import Run, Trainer


def bare_run(trainer: Trainer) -> Run:
    """Return a run in training mode, without a folder, progress and evaluations of its own."""
    run = Run(trainer.config, trainer.dataset, trainer.model, trainer.assignment)
    trainer.model.train()
    return run


class TrainerSteps:
    """A trainer's own steps; the state of its optimizer is made at the first one."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @cached_property
    def run(self) -> Run:
        """Return the run of the trainer."""
        return bare_run(self._trainer)

    def steps(self, count: int) -> None:
        """Make some steps."""
        for _ in range(count):
            self.run.make_step()

    def first_loss(self) -> float:
        """Make the first step and return its loss."""
        self.steps(1)
        self.run.read_losses()
        return self.run.state.loss_sum
