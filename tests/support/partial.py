"""Calls that keep what they found in a folder, and the moments at which they are stopped."""

import torch

import kgfast
from kgfast.eval import partial
from support.streamed import KNOWN, TRIPLES, N


def stop_after(patch, count):
    """Let a call end, as if it was killed, when it has kept so many ranges."""
    save, kept = partial.Partial.save, []

    def stopped(self, *args):
        if len(kept) == count:
            raise KeyboardInterrupt
        kept.append(args)
        save(self, *args)

    patch.setattr(partial.Partial, "save", stopped)
    return kept


def results(found) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(found, kgfast.Ranks):
        return [it for own in (found, found.raw) for it in (own.greater, own.equal)]
    return [found.ids, found.scores] if hasattr(found, "ids") else [found.triples, found.scores]


def ask(kind, model, **options):
    """Return a call of each front, the last two among rows with ties."""
    options = {"known": KNOWN} | options
    if kind == "rank":
        return results(kgfast.rank(model, TRIPLES, **options))
    if kind == "topk":
        asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 4}
        return results(kgfast.topk(model, **asked | options))
    few = {"k": 70, "tails": list(range(0, N, 2))}
    return results(kgfast.top_facts(model, **few | options))
