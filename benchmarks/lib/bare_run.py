"""A trainer whose steps a benchmark makes itself."""

from kgfast.training import Trainer


def begun(trainer: Trainer) -> Trainer:
    """Return a trainer in training mode, without a folder, at the first step of its run."""
    trainer.begin()
    trainer.model.train()
    return trainer


class TrainerSteps:
    """A trainer's own steps; the state of its optimizer is made at the first one."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._is_begun = trainer, False

    def steps(self, count: int) -> None:
        """Make some steps."""
        if not self._is_begun:
            begun(self._trainer)
            self._is_begun = True
        for _ in range(count):
            self._trainer.make_step()

    def first_loss(self) -> float:
        """Make the first step and return its loss."""
        self.steps(1)
        self._trainer.read_losses()
        return self._trainer.state.loss_sum
