"""Peers: ways to do without kgfast, each by the options that are fastest here.

| work | module | peers | options that are tried beforehand, in the same process |
|---|---|---|---|
| the best k by dot, l2 or rotate | nearest.py | its own table | its own table |
| ranks of RotatE | ranks.py | torch, torch.compile | rows of a chunk |
| | ranks.py | PyKEEN's evaluator | queries, rows of a slice |
| ranks by dot, by the L2 norm | ranks.py | matmul + compare | queries, rows of a chunk; compiled |
| steps with sampled negatives | steps.py | a tuned formula, eager and compiled | rows of a part |
| | steps.py | PyKEEN's sLCWA | rows of a part (its sub-batch) |
| steps of 1-vs-all | epochs.py | dense torch, LibKGE's product, PyKEEN's LCWA | bf16, compiled |
| losses | losses.py | torch, dense, in chunks, compiled | rows of a chunk of distances |
| all scores | bare.py | a bare loop in C++, compiled here | none |

A peer that cannot run here raises `Missing`. A benchmark names the options beside its times.
"""

import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any
from unittest.mock import patch

from torch import Tensor

from lib.measure import Stopwatch, take_turns
from lib.results import ROOT

KEOPS = ROOT / "build" / "keops"
# The permissions of -ffast-math, which would also make the process flush denormals to zero.
KEOPS_FLAGS = ("-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
KEOPS_FLAGS += ("-fassociative-math", "-freciprocal-math", "-ffinite-math-only")

# rows of the table, when chunk sizes of eager code are tried; a GPU tries all
TRIED_ROWS = {"cpu": 4096, "cuda": 1 << 62}


class Missing(Exception):
    """A peer cannot run here; the message says why."""


def fastest(tried: Sequence[Any], device: str) -> Any:
    """Return the one of some sizes with the best turn of three, after a first that warms it up."""
    for work in tried:
        work()
    seconds = take_turns({str(i): it for i, it in enumerate(tried)}, 3, Stopwatch(device).seconds)
    return min(enumerate(tried), key=lambda pair: min(seconds[str(pair[0])]))[1]


@contextmanager
def building() -> Iterator[None]:
    """Silence the import or the compilation of a peer, and raise Missing where it fails."""
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except ImportError:
        raise Missing("not installed") from None
    except Missing:
        raise
    except Exception as error:  # no C++ compiler, no Triton: whatever it lacks
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Missing(f"does not compile here: {first_line[:100]}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PyKEEN's advice about memory that a CPU does not have."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def import_keops() -> Any:
    """Return KeOps' ``LazyTensor``, whose code is compiled for this machine in a folder of ours."""
    ours = {"CXXFLAGS": " ".join(KEOPS_FLAGS), "KEOPS_CACHE_FOLDER": str(KEOPS)}
    with building(), patch.dict(os.environ, ours):
        from pykeops.torch import LazyTensor
    return LazyTensor


def silence_pykeen() -> None:
    """Silence PyKEEN's loggers for good."""
    for noisy in ("pykeen", "torch_max_mem"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def rotate_scores(queries: Tensor, rows: Tensor, tiny: float = 0.0) -> Tensor:
    """RotatE scores of broadcast rows ``re | im``.

    The root of a sum of squares, to which ``tiny`` is added where its gradient must exist at 0:
    ``hypot`` and complex ``abs`` take several times as long on a CPU.
    """
    dim = rows.shape[-1] // 2
    re = queries[..., :dim] - rows[..., :dim]
    im = queries[..., dim:] - rows[..., dim:]
    squares = re * re + im * im
    return -(squares + tiny if tiny else squares).sqrt().sum(-1)
