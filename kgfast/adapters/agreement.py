"""That a converted model scores as the one it was made of: a wrong conversion is never silent."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kgfast.ops import indexed_scores

_SAMPLES = 32
_SLACK = 1e-4  # relative, of scores in float32


def sample_ids(count: int, shift: int, device: torch.device) -> Tensor:
    """Some ids spread over all of them, from ``shift`` on, int64 ``[32]``."""
    steps = torch.arange(_SAMPLES, dtype=torch.int64, device=device)
    return (shift + steps * max(1, count // _SAMPLES)) % count


@torch.no_grad()
def check_agreement(
    model: Any,
    theirs: Callable[[Tensor, Tensor, Tensor], Tensor],
    name: str,
    *,
    in_their_terms: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> None:
    """Compare scores on triples spread over the ids; numbers that are not finite are left out.

    Parameters
    ----------
    model : Model
        The converted one.
    theirs : callable
        The scores ``[B]`` of heads, relations and tails, by the other library.
    name : str
        What the message calls the other model.
    in_their_terms : callable
        From scores here to scores there: a margin, a square.

    Raises
    ------
    ValueError
        If they differ: names a triple and both scores.
    """
    table = model.candidates("tail").table
    size, device = model.num_entities, table.device
    h, t = (sample_ids(size, shift, device) for shift in (0, size // 2))
    r = sample_ids(model.num_relations, 0, device)
    scores = theirs(h, r, t)
    expected = scores.double().reshape(len(h))
    finite = expected.isfinite()  # what is not is ranked or refused as the caller says
    h, r, t, expected = h[finite], r[finite], t[finite], expected[finite]
    queries = model.queries(h, r, "tail")
    found = in_their_terms(indexed_scores(queries, table, t[:, None], model.score)[:, 0].double())
    wrong = (found - expected).abs() > _SLACK * (1 + expected.abs())
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        why = "its tables mean something else here; rank it through kgfast.BlockScorer"
        if scores.dtype in (torch.float16, torch.bfloat16):
            why = (
                f"it computes in {scores.dtype}, whose rounding is {name.split(' of ')[-1]}'s, and "
                f"kgfast does not round so: convert model.float(), or rank it through "
                f"kgfast.BlockScorer"
            )
        raise ValueError(
            f"{name}: kgfast scores ({int(h[at])}, {int(r[at])}, {int(t[at])}) "
            f"{float(found[at]):.6g}, not {float(expected[at]):.6g}: {why}"
        )
