"""Callbacks of a run: methods of a user's program that a run calls."""

from typing import Any

from kgfast.training.logs import Row


class Callback:
    """Base of callbacks, for a subclass that overrides the methods it needs.

    :class:`kgfast.training.Trainer` takes callbacks; of several processes, the first one calls.
    An exception of :meth:`on_step` or :meth:`on_evaluation` ends the run, after the checkpoint that
    is due at the step. A run that is resumed calls again for the rows since the last checkpoint.
    """

    def on_step(self, row: Row) -> None:
        """Take a row of the log of training: every ``train.log_every`` steps.

        ``row`` has ``step``, ``epoch``, ``time`` in seconds, the mean ``loss`` since the last row
        and ``lr``; for croppable embeddings also the weights of MED.
        """

    def on_evaluation(self, row: Row) -> None:
        """Take the metrics of an evaluation on valid.

        ``row`` has ``step``, ``epoch``, ``time``, ``split`` and filtered metrics such as ``mrr``.
        For croppable embeddings, there is a row for each sub-model, with its width ``dim``.
        """

    def on_end(self, result: Any) -> None:
        """Take the :class:`kgfast.training.Result` of the run, once, before ``fit`` returns.

        The run folder then has the best checkpoint and ``result.json``. A call of ``fit`` for a
        finished run calls this method again.
        """
