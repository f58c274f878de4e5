"""The folder of ``partial=``: results of finished work, so that a killed call resumes.

``pass-N.safetensors`` has the results of some queries up to a row of the table. Each save replaces
the file as a whole, so a process that is killed at any moment leaves a valid file. The metadata are
the format, the fingerprint of the call, the queries of a pass, the number of the pass, the next row
(or ``end``), and a digest of these and the results. One process at a time uses the folder.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from kgfast.locks import locked
from kgfast.storage import Fingerprint, check_room
from kgfast.text import shown
from kgfast.whole_files import write_whole

_FORMAT = "1"
_END = "end"
_FIELDS = ("format", "call", "per_pass", "number", "next_row")


class Partial:
    """Folder of one call, with passes numbered in order; this process holds the lock of the folder.

    ``call`` is the fingerprint of everything that results depend on. The attribute ``per_pass``
    comes from the call that made the folder. With ``one_file`` the last pass has all results.
    """

    def __init__(self, folder: Path, call: str, per_pass: int, *, one_file: bool) -> None:
        self.folder, self.number, self._call, self._one_file = folder, -1, call, one_file
        passes = sorted(folder.glob("pass-*.safetensors"))
        self.per_pass = int(self._read(passes[0])[0]["per_pass"]) if passes else per_pass

    def load(self, results: Sequence[Any]) -> int | None:
        """Begin the next pass: restore results; return the row to resume from, None at the end."""
        self.number += 1
        if not self._path.exists():
            return 0
        facts, values = self._read(self._path)
        number, states = int(facts["number"]), [result.state for result in results]
        if self._one_file and number != self.number:
            return None if number > self.number else 0
        if number != self.number:
            raise _damaged(self._path, "results of another pass")
        rest = iter(values)
        for result, state in zip(results, states, strict=True):
            result.restore([next(rest) for _ in state])
        return None if facts["next_row"] == _END else int(facts["next_row"])

    def save(self, results: Sequence[Any], next_row: int | None) -> None:
        """Save the results of the pass up to a row; on a full disk, the earlier file stays."""
        from safetensors.torch import save_file

        values = [value.contiguous() for result in results for value in result.state]
        needed = sum(value.nbytes for value in values) + (1 << 12)
        check_room(self.folder, needed, f"partial: {self.folder} needs")
        row = _END if next_row is None else str(next_row)
        texts = _FORMAT, self._call, str(self.per_pass), str(self.number), row
        facts = dict(zip(_FIELDS, texts, strict=True)) | {"digest": _digest(*texts, *values)}
        tensors = {str(place): value for place, value in enumerate(values)}
        write_whole(self._path, lambda path: save_file(tensors, path, facts), lasting=True)

    @property
    def _path(self) -> Path:
        return self.folder / f"pass-{0 if self._one_file else self.number}.safetensors"

    def _read(self, path: Path) -> tuple[dict[str, str], list[Tensor]]:
        """Return the metadata and the results in a file of this call."""
        from safetensors import safe_open

        try:
            with safe_open(path, "pt") as file:
                facts = dict(file.metadata() or {})
                values = [file.get_tensor(str(place)) for place in range(len(file.keys()))]
            is_ours = facts["format"] == _FORMAT
            texts = [facts[name] for name in _FIELDS] if is_ours else []
            is_whole = not is_ours or facts["digest"] == _digest(*texts, *values)
        except MemoryError:
            raise
        except Exception as error:  # errors for a damaged file are of many classes
            raise _damaged(path, " ".join((str(error) or type(error).__name__).split())) from None
        if not is_ours:
            raise ValueError(
                f"{path}: format {shown(facts['format'])}; this kgfast goes on with format "
                f"{_FORMAT}: choose another folder, or delete this one"
            )
        if not is_whole:
            raise _damaged(path, "the values are not those that were written")
        if facts["call"] != self._call:
            raise ValueError(
                f"partial: {self.folder} is of another call: table, triples, known triples, sides, "
                "dims, candidates or model differ; choose another folder, or delete this one"
            )
        return facts, values


@contextmanager
def using(folder: Any) -> Iterator[Path]:
    """Make a folder for a call, and lock other processes out."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, "partial: ", "choose another folder"):
        yield path


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path}: damaged: not written by kgfast: {why:.200}; delete the file")


def _digest(*values: Any) -> str:
    found = Fingerprint()
    found.add(*values)
    return found.text()
