"""Models of other programs: reading, scoring by their own code, and comparison."""

import errno
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from kgfast import tables
from kgfast.graph import Names
from kgfast.models import SIDES, BlockScorer, Side, from_array
from kgfast.ops import indexed_scores
from kgfast.text import in_a_line, reading, shown

_SAMPLES = 32
_SLACK = 1e-4  # relative error of scores in float32


class NamedModel(NamedTuple):
    """Model, and the vocabularies of the rows if a file has them."""

    model: Any
    vocabulary: Names = (None, None)


def sample_ids(count: int, shift: int, device: torch.device) -> Tensor:
    """Return 32 ids spread over all ids, starting at ``shift``."""
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
    """Raise ValueError if a converted model scores a sample of triples unlike the original.

    ``in_their_terms`` maps kgfast's scores to the original's, such as by a margin. Scores that are
    not finite are not compared; the caller of a ranking decides about these.
    """
    table = model.candidates("tail").table
    size, device = model.num_entities, table.device
    h, t = (sample_ids(size, shift, device) for shift in (0, size // 2))
    r = sample_ids(model.num_relations, 0, device)
    scores = theirs(h, r, t)
    expected = scores.double().reshape(len(h))
    finite = expected.isfinite()
    h, r, t, expected = h[finite], r[finite], t[finite], expected[finite]
    queries = model.queries(h, r, "tail")
    converted = in_their_terms(
        indexed_scores(queries, table, t[:, None], model.score)[:, 0].double()
    )
    wrong = (converted - expected).abs() > _SLACK * (1 + expected.abs())
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        why = "the tables have another meaning in kgfast; rank the model through kgfast.BlockScorer"
        if scores.dtype in (torch.float16, torch.bfloat16):
            why = (
                f"the model computes in {scores.dtype} with the rounding of "
                f"{name.split(' of ')[-1]}, unlike kgfast: convert model.float(), or rank the "
                "model through kgfast.BlockScorer"
            )
        raise ValueError(
            f"{name}: kgfast scores ({int(h[at])}, {int(r[at])}, {int(t[at])}) "
            f"{float(converted[at]):.6g}, not {float(expected[at]):.6g}: {why}"
        )


@contextmanager
def converting(model: nn.Module) -> Iterator[None]:
    """Set eval mode without gradients, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class _OwnScores(nn.Module):
    """Scores by a model's own code; a module, so that ranking sets the model to eval mode."""

    def __init__(self, model: nn.Module, score: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.score = model, score

    def scores(self, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
        return self.score(self.model, anchors, relations, side, ids)


def block_scorer(
    model: nn.Module,
    score: Callable[[Any, Tensor, Tensor, Side, Tensor], Tensor],
    num_entities: int,
    num_relations: int,
    device: torch.device,
    **options: Any,
) -> BlockScorer:
    """Score in blocks by ``score(model, anchors, relations, side, ids)``."""
    scores = _OwnScores(model, score).scores
    return BlockScorer(scores, num_entities, num_relations, sides=SIDES, device=device, **options)


class Options(BaseModel):
    """Options in a file of another program; keys that are no fields are not read."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


Read = TypeVar("Read", bound=Options)


def read_options(path: Path, whose: str, options: type[Read]) -> Read:
    """Read options from a JSON object."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; {whose}")
    with reading(path, "not a JSON object"):
        try:
            return options.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                raise ValueError(first["msg"]) from None
            got = "" if first["type"] == "missing" else f"; got {shown(first['input'])}"
            raise ValueError(f"{path}: {first['loc'][0]}: {first['msg']}{got}") from None


def check_width(where: str, table: Any, dim: int, is_doubled: bool, width: int) -> None:
    """Check the columns of a table, which the option ``hidden_dim`` sets."""
    if table.ndim != 2 or table.shape[1] != width:
        raise ValueError(
            f"{where} must have {width} columns (hidden_dim {dim}{', doubled' * is_doubled}); got "
            f"shape {list(table.shape)}"
        )


def read_npy(path: Path, missing: str, *, as_table: bool = False) -> Any:
    """Map an array of numpy, or open a table; ``missing`` ends the error for a missing file.

    Writes to a mapped array stay in this process, and may fill its memory.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file{missing}")
    if as_table:
        return tables.open(path)
    with reading(path, "not a NumPy table"):
        try:
            mapped = np.load(path, mmap_mode="c", allow_pickle=False)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(
                f"{path}: larger than memory; as_table=True leaves entities in the file"
            ) from None
        return from_array(path.stem, mapped)


def load_weights(path: Path, *, mapped: bool = False) -> Any:
    """Unpickle a file of tensors; anything else in the file is refused and not run."""
    with reading(path, "damaged"):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:  # drop torch's advice to unpickle the file anyway
            said = re.search(r"Unsupported [^\n]*?(?= was not an allowed|\n|$)", str(error))
            raise ValueError(
                f"{path}: holds something else than tensors, or is damaged; it was not loaded: "
                f"{in_a_line(said[0]) if said else 'not a pickle of torch'}"
            ) from None
