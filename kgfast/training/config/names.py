"""Which config is meant: a file, or one that comes with the package."""

import os
from importlib import resources
from pathlib import Path

from kgfast.graph import did_you_mean, nearest_names
from kgfast.text import shown

_SUFFIX = ".yaml"


def find_config(name: str | os.PathLike[str]) -> Path:
    """The file of a config.

    Parameters
    ----------
    name
        A file, or the name of a config of the package: ``wn18rr/rotate_fast``, also with ``.yaml``
        and ``configs/``. An existing file wins.

    Raises
    ------
    FileNotFoundError
        If it is neither; the message has the nearest names.

    Examples
    --------
    >>> find_config("wn18rr/rotate_fast").name
    'rotate_fast.yaml'
    """
    path = Path(name)
    try:
        if path.is_file():
            return path
    except OSError:  # longer than any file's name
        pass
    packaged = packaged_configs()
    plain_name = path.as_posix().removeprefix("./").removeprefix("configs/").removesuffix(_SUFFIX)
    if plain_name in packaged:
        return packaged[plain_name]
    raise FileNotFoundError(f"{said(name)}: no such config file{_instead(plain_name, packaged)}")


def packaged_configs() -> dict[str, Path]:
    """The configs that come with the package: name and file, sorted.

    Examples
    --------
    >>> "default/rotate" in packaged_configs()
    True
    """
    root = Path(str(resources.files("kgfast.configs")))
    files = sorted(root.glob(f"*/*{_SUFFIX}"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def _instead(plain_name: str, packaged: dict[str, Path]) -> str:
    """What to say of a name that is not among those of the package."""
    whole = did_you_mean(plain_name, packaged)
    if whole:
        return f", nor one of the package{whole}"
    within = [name for name in packaged if name.partition("/")[2] == plain_name]
    if not within:  # a slip in the second part alone: rotate_fst
        last = nearest_names(plain_name, {name.partition("/")[2] for name in packaged}, 1)
        within = [name for name in packaged if [name.partition("/")[2]] == last]
    if within:
        return f", nor one of the package; did you mean {' or '.join(map(shown, within[:3]))}?"
    folders = ", ".join(sorted({name.partition("/")[0] for name in packaged}))
    return f", nor one of the package (in {folders})"


def said(name: str | os.PathLike[str]) -> str:
    """Return a name as messages have it, cut where it is long."""
    text = str(name)
    return text if len(text) <= 200 else f"{text[:200]}..."
