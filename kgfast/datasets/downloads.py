"""Download a data set: checked, cached, whole or not at all."""

import hashlib
import os
import re
import shutil
import tarfile
import tomllib
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgfast.datasets.dataset import Dataset
from kgfast.datasets.readers import load
from kgfast.frames import EXTRA, needed
from kgfast.graph import did_you_mean
from kgfast.progress import progress_bar
from kgfast.text import shown

FOLDER_VARIABLE, MIRROR_VARIABLE = "KGFAST_DATA", "KGFAST_MIRROR"
_SUMS = "SHA256SUMS"
_CHUNK = 1 << 20
_SHA256 = 64  # digits of a SHA-256
_SECONDS = 30  # longest silence of a server


@dataclass(frozen=True)
class Source:
    """Addresses and checksums of a data set's files; ``sources.toml`` explains the fields."""

    base: str
    files: dict[str, str]
    members: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)


_LISTED = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
SOURCES = {name: Source(**facts) for name, facts in _LISTED.items()}


def download(
    name: str, *, root: str | os.PathLike[str] | None = None, progress: bool = False
) -> Dataset:
    """Download a data set, unless it is in the cache, and read the data set.

    Files come from the repositories of their authors, pinned by commit, and must have a known
    checksum (``sources.toml`` beside this module). Files that differ or are not whole are deleted.
    Downloads need pooch: ``pip install "kgfast[data]"``.

    Parameters
    ----------
    name
        "wn18rr", "fb15k237", "wn18", "fb15k", "yago3-10", "codex-s", "codex-m", "codex-l" or
        "wikidata5m", in upper or lower case, with or without hyphens.
    root
        The cache, with one folder per data set. The default is the environment variable
        KGFAST_DATA, else the user's cache folder.
    progress
        Show a progress bar.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        For an unknown name, a checksum that differs, and files of the cache that were changed.
    ConnectionError
        If neither the source nor a mirror gives a file. Mirrors are addresses or folders in
        KGFAST_MIRROR, separated by spaces; the first try is `<mirror>/<name>/<file>`.
    ImportError
        If pooch is not installed.

    Examples
    --------
    >>> download("wn18r")
    Traceback (most recent call last):
    ...
    ValueError: no data set 'wn18r' to download; did you mean ...
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string; got {type(name).__name__}")
    wanted = re.sub(r"[\W_]", "", name.lower())
    key = next((key for key in SOURCES if key.replace("-", "") == wanted), None)
    if key is None:
        raise ValueError(f"no data set {shown(name)} to download{did_you_mean(name, SOURCES)}")
    root = root or os.environ.get(FOLDER_VARIABLE) or _pooch().os_cache("kgfast")
    folder = Path(root).expanduser() / key
    if not folder.is_dir():
        _download(SOURCES[key], folder, progress)
    _check_cached(folder)
    return load(folder, name=key)


def _pooch() -> Any:
    return needed("pooch", "kgfast.datasets.download", EXTRA)


def _download(source: Source, folder: Path, progress: bool) -> None:
    mirrors = [mirror.rstrip("/") for mirror in os.environ.get(MIRROR_VARIABLE, "").split()]
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    scratch.mkdir(parents=True)
    try:
        for file, checksum in source.files.items():
            places = [f"{mirror}/{folder.name}/{file}" for mirror in mirrors]
            places.append(source.elsewhere.get(file, f"{source.base}/{file}"))
            _fetch(places, scratch / file, checksum, progress)
            if source.members:
                _unpack(scratch / file, source.members)
        files = sorted(path.name for path in scratch.iterdir())
        sums = [f"{_digest(scratch / file)}  {file}\n" for file in files]
        (scratch / _SUMS).write_text("".join(sums), encoding="utf-8")
        try:
            os.replace(scratch, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(places: list[str], target: Path, checksum: str, progress: bool) -> None:
    """Copy a file from the first address or folder that has it, and check the copy."""
    failures = []
    for place in places:
        try:
            if place.startswith(("http://", "https://")):
                with _Bar(f"downloading {target.name}", progress) as bar:
                    get = _pooch().HTTPDownloader(bar, chunk_size=_CHUNK, timeout=_SECONDS)
                    get(place, str(target), None)
            else:
                shutil.copyfile(place, target)
        except OSError as error:
            failures.append(f"{place}: {_reason(error)}")
            continue
        kind = "SHA-256" if len(checksum) == _SHA256 else "Git object id"
        found = _digest(target, in_git=len(checksum) != _SHA256)
        if found != checksum:
            raise ValueError(
                f"{place}: its {kind} is {found}, but {checksum} was published: the file is "
                "another one, or was damaged on its way; the file is deleted"
            )
        return
    raise ConnectionError(
        f"{target.name} could not be downloaded: {'; '.join(failures)}. Without a network, put the "
        f"files into a folder DIR/{target.parent.name.split('.')[1]}/, and set "
        f"{MIRROR_VARIABLE}=DIR"
    )


def _reason(error: OSError) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    text = str(error)
    if "IncompleteRead" in text:
        return "the connection broke before the file was whole"
    return f"{type(error).__name__}, is there a network?" if len(text) > 80 else text


class _Bar(ExitStack):
    """Progress bar for pooch's downloader, which sets the total, and tells it again at the end."""

    total = 0  # bytes

    def __init__(self, label: str, progress: bool) -> None:
        super().__init__()
        self._label, self._progress = label, progress
        self._advance: Callable[[int], None] | None = None
        self._done = 0

    def update(self, count: int) -> None:
        if self._advance is None:
            bar = progress_bar(self._progress, self._label, self.total)
            self._advance = self.enter_context(bar)
        count = min(count, self.total - self._done)
        self._done += count
        self._advance(count)

    def reset(self) -> None:
        """Do nothing: the bar is full."""


def _digest(path: Path, *, in_git: bool = False) -> str:
    """Return the SHA-256 of a file, or Git's object id."""
    digest = hashlib.sha1(usedforsecurity=False) if in_git else hashlib.sha256()
    if in_git:
        digest.update(f"blob {path.stat().st_size}\0".encode())
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unpack(archive: Path, members: dict[str, str]) -> None:
    try:
        with tarfile.open(archive) as tar:
            for member, name in members.items():
                packed = tar.extractfile(member)
                if packed is None:
                    raise tarfile.ExtractError(f"{member} is no file")
                with packed, open(archive.parent / name, "wb") as file:
                    shutil.copyfileobj(packed, file, _CHUNK)
    except (tarfile.TarError, EOFError, KeyError, zlib.error) as error:
        raise ValueError(f"{archive.name}: not the archive that was expected: {error}") from None
    archive.unlink()


def _check_cached(folder: Path) -> None:
    sums = folder / _SUMS
    if not sums.is_file():
        raise ValueError(
            f"{folder} was not written by kgfast.datasets.download: {_SUMS} is missing; read the "
            "folder with kgfast.datasets.load, or move it away"
        )
    for line in sums.read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or _digest(path) != expected:
            raise ValueError(
                f"{path} has changed since the download; delete {folder} to download again"
            )
