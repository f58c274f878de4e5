"""Download a data set: pinned by commit, checked by checksum, cached."""

import hashlib
import os
import re
import shutil
import tarfile
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kgfast.datasets.dataset import Dataset
from kgfast.datasets.readers import load
from kgfast.frames import EXTRA, needed
from kgfast.graph import did_you_mean
from kgfast.text import in_a_line, shown
from kgfast.whole_files import write_whole

FOLDER_VARIABLE = "KGFAST_DATA"
_SHA256 = 64  # digits of a SHA-256


@dataclass(frozen=True)
class Source:
    """Addresses and checksums of a data set's files; ``sources.toml`` explains the fields."""

    base: str
    files: dict[str, str]
    members: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)


_LISTED = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
SOURCES = {name: Source(**facts) for name, facts in _LISTED.items()}


def download(name: str, *, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Download a data set, unless it is in the cache, and read the data set.

    Files come from the repositories of their authors, pinned by commit, and must have a known
    checksum (``sources.toml`` beside this module), also when they are read from the cache; what
    was unpacked from an archive has none.
    Downloads need pooch: ``pip install "kgfast[data]"``.

    Parameters
    ----------
    name
        "wn18rr", "fb15k237", "wn18", "fb15k", "yago3-10", "codex-s", "codex-m", "codex-l" or
        "wikidata5m", in upper or lower case, with or without hyphens.
    root
        The cache, with one folder per data set. The default is the environment variable
        KGFAST_DATA, else the user's cache folder.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        For an unknown name, or a checksum that differs; the file is deleted.
    ConnectionError
        If the source does not give a file.
    ImportError
        If pooch is not installed.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string; got {type(name).__name__}")
    wanted = re.sub(r"[\W_]", "", name.lower())
    key = next((key for key in SOURCES if key.replace("-", "") == wanted), None)
    if key is None:
        raise ValueError(f"no data set {shown(name)} to download{did_you_mean(name, SOURCES)}")
    pooch = needed("pooch", "kgfast.datasets.download", EXTRA)
    folder = Path(root or os.environ.get(FOLDER_VARIABLE) or pooch.os_cache("kgfast"))
    folder = folder.expanduser() / key
    source = SOURCES[key]
    for file, checksum in source.files.items():
        url = source.elsewhere.get(file, f"{source.base}/{file}")
        in_git = len(checksum) != _SHA256
        try:
            pooch.retrieve(url, None if in_git else checksum, file, folder)
        except OSError as error:
            raise ConnectionError(
                f"{url} could not be downloaded: {in_a_line(str(error))}. Without a network, bring "
                "the files yourself, and read their folder by kgfast.datasets.load"
            ) from None
        if in_git and _git_id(folder / file) != checksum:
            (folder / file).unlink()
            raise ValueError(f"{url}: its Git object id is not {checksum}; the file is deleted")
        if not all((folder / split).exists() for split in source.members.values()):
            _unpack(folder / file, source.members)
    return load(folder, name=key)


def _unpack(archive: Path, members: dict[str, str]) -> None:
    """Write members of an archive beside it, each whole."""
    with tarfile.open(archive) as tar:
        for member, split in members.items():
            content: Any = tar.extractfile(member)
            write_whole(archive.with_name(split), partial(_copy, content))


def _copy(content: Any, path: Path) -> None:
    with open(path, "wb") as file:
        shutil.copyfileobj(content, file)


def _git_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
