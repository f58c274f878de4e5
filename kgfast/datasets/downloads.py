"""Download a data set: checked, cached, whole or not at all."""

import hashlib
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kgfast.datasets.catalogue import SOURCES, Source
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


def download(
    name: str, *, root: str | os.PathLike[str] | None = None, progress: bool = False
) -> Dataset:
    """Download a data set, unless it is in the cache, and read the data set.

    Files come from the repositories of their authors, pinned by commit, and must have a known
    checksum (:mod:`kgfast.datasets.catalogue`). Files that differ or are not whole are deleted.
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
    key = _known_name(name)
    source, folder = SOURCES[key], _cache(root) / key
    if not folder.is_dir():
        _download(source, folder, progress)
    _check_cached(folder)
    return load(folder, name=key)


def _known_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string; got {type(name).__name__}")
    wanted = re.sub(r"[\W_]", "", name.lower())
    for key in SOURCES:
        if key.replace("-", "") == wanted:
            return key
    raise ValueError(f"no data set {shown(name)} to download{did_you_mean(name, SOURCES)}")


def _cache(root: str | os.PathLike[str] | None) -> Path:
    root = root or os.environ.get(FOLDER_VARIABLE) or _pooch().os_cache("kgfast")
    return Path(root).expanduser()


def _pooch() -> Any:
    return needed("pooch", "kgfast.datasets.download", EXTRA)


def _download(source: Source, folder: Path, progress: bool) -> None:
    mirrors = list(_mirrors())
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    scratch.mkdir(parents=True)
    try:
        for file, checksum in source.files.items():
            places = [f"{mirror}/{folder.name}/{file}" for mirror in mirrors]
            _fetch([*places, source.address(file)], scratch / file, checksum, progress)
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


def _mirrors() -> Iterator[str]:
    for mirror in os.environ.get(MIRROR_VARIABLE, "").split():
        if not mirror.startswith(("http://", "https://")) and not Path(mirror).is_dir():
            raise ValueError(
                f"{MIRROR_VARIABLE}: {shown(mirror)} is neither an address (http:// or https://) "
                f"nor a folder"
            )
        yield mirror.rstrip("/")


def _fetch(places: list[str], target: Path, checksum: str, progress: bool) -> None:
    failures = []
    for place in places:
        try:
            _copy(place, target, progress)
        except OSError as error:
            target.unlink(missing_ok=True)
            failures.append(f"{place}: {_reason(error)}")
            continue
        kind = "SHA-256" if len(checksum) == _SHA256 else "Git object id"
        found = _digest(target, in_git=len(checksum) != _SHA256)
        if found != checksum:
            target.unlink()
            raise ValueError(
                f"{place}: its {kind} is {found}, but {checksum} was published: the file is "
                "another one, or was damaged on its way; the file is deleted"
            )
        return
    raise ConnectionError(
        f"{target.name} could not be downloaded: {'; '.join(failures)}. Without a network, put it "
        f"into a folder {_name_of(target)}/ and name the folder that holds that in "
        f"{MIRROR_VARIABLE}"
    )


def _name_of(target: Path) -> str:
    return target.parent.name.split(".")[1]


def _copy(place: str, target: Path, progress: bool) -> None:
    """Copy a file from an address or a folder; raise an OSError if the copy is not whole."""
    if not place.startswith(("http://", "https://")):
        shutil.copyfile(place, target)
        return
    bar = _Bar(f"downloading {target.name}", progress)
    get = _pooch().HTTPDownloader(progressbar=bar, chunk_size=_CHUNK, timeout=_SECONDS)
    try:
        get(place, str(target), None)
    finally:
        bar.close()


def _reason(error: OSError) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    text = str(error)
    if "IncompleteRead" in text:
        return "the connection broke before the file was whole"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"{type(error).__name__}, is there a network?" if len(text) > 80 else text


class _Bar:
    """Progress bar for pooch's downloader."""

    def __init__(self, label: str, progress: bool) -> None:
        self.total = 0  # bytes, which pooch sets
        self._label, self._progress = label, progress
        self._shown: AbstractContextManager[Any] | None = None
        self._left = 0

    def update(self, count: int) -> None:
        if self._shown is None:
            self._shown = progress_bar(self._progress, self._label, self.total)
            self._advance, self._left = self._shown.__enter__(), self.total
        count = min(count, self._left)
        self._left -= count
        self._advance(count)

    def reset(self) -> None:
        """Ignore the total, which pooch tells once more at the end."""

    def close(self) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
            self._shown = None


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
