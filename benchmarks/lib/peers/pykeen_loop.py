"""PyKEEN's training loops on its own models."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lib.peers import Missing, quiet, silence_pykeen

Optimizer = Callable[..., torch.optim.Optimizer]  # makes one of parameters
NOTHING: Mapping[str, Any] = {}


class PykeenLoop:
    """A model and the training loop of PyKEEN's names for them; ``sizes``: entities, relations."""

    def __init__(
        self,
        hrt: Tensor,
        sizes: tuple[int, int],
        model: str,
        loop: str,
        optimizer: Optimizer,
        of_model: Mapping[str, Any],
        of_loop: Mapping[str, Any] = NOTHING,
    ) -> None:
        try:
            from pykeen.models import model_resolver
            from pykeen.training import training_loop_resolver
            from pykeen.triples import CoreTriplesFactory
        except ImportError:
            raise Missing("not installed") from None
        silence_pykeen()
        self._factory = partial(CoreTriplesFactory, num_entities=sizes[0], num_relations=sizes[1])
        given = {"triples_factory": self._factory(hrt)}
        self.model: Any = model_resolver.make(model, random_seed=0, **given, **of_model)
        given |= {"model": self.model, "optimizer": optimizer(self.model.parameters())}
        self._loop: Any = training_loop_resolver.make(loop, **given, **of_loop)

    def train(self, hrt: Tensor, batch: int, part: int | None = None, epochs: int = 1) -> None:
        """Train on triples, ``part`` rows of a batch at once; None: all of them."""
        with quiet():
            self._loop.train(
                self._factory(hrt),
                num_epochs=epochs,
                batch_size=batch,
                sub_batch_size=part,
                use_tqdm=False,
                pin_memory=False,
            )
