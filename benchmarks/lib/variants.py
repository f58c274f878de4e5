"""Runs of a config with other values: what each change was worth, one file and table per config."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lib import pages
from lib.pages import packages

_OF_A_RUN = ("dataset.root", "train.out_dir", "train.steps", "train.eval_every", "threads")
_SHOWN = ("model.base_dim", "data.train_bs", "optim.lr", "sched.name")  # also where all agree
_SHOWN_OF_SAMPLES = ("data.neg_size", "loss.alpha")
_FACTS = ("steps", "seconds_training", "machine", "threads", "versions")
Variant = Mapping[str, Any]


def add(folders: Sequence[Path], config: Path, target: Path) -> Path:
    """Copy what finished runs had for values, and came to, into the file of their config.

    Parameters
    ----------
    folders : sequence of Path
        Runs of ``kgfast train``.
    config : Path
        The file under configs/, relative to the repository.
    target : Path
        The folder of such files. An earlier file of the config is replaced.

    Raises
    ------
    FileNotFoundError
        If a run has not ended.
    """
    variants = []
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        values = flat(yaml.safe_load((folder / "config.yaml").read_text()))
        variants.append(
            {
                "values": {key: it for key, it in values.items() if key not in _OF_A_RUN},
                "valid_mrr": [row["mrr"] for row in rows if row.get("split") == "valid"][-1],
                "test_mrr": result["test"]["mrr"],
                **{name: result[name] for name in _FACTS},
                "command": portable_command(result["command"], config),
            }
        )
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{config.parent.name}-{config.stem}.json"
    found = {"config": config.as_posix(), "variants": variants}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def portable_command(command: str, config: Path) -> str:
    """A command that others can run from a clone: without the folders of the machine that ran it.

    >>> portable_command("kgfast train -c /a/x.yaml --set dataset.root=/b", Path("configs/x.yaml"))
    'kgfast train -c configs/x.yaml --set dataset.root=DIR'
    """
    return shlex.join(_portable_word(word, config) for word in shlex.split(command))


def _portable_word(word: str, config: Path) -> str:
    if Path(word).name == config.name:
        return config.as_posix()
    if word.startswith("dataset.root="):
        return "dataset.root=DIR"
    return Path(word).name if Path(word).is_absolute() else word


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; lists, which a section is not, stay as they are.

    >>> flat({"model": {"name": "rotate", "dims": [1, 2]}, "seed": 3})
    {'model.name': 'rotate', 'model.dims': [1, 2], 'seed': 3}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def markdown(folder: Path) -> Iterator[str]:
    """A table for each file of the folder: the keys that differ, and MRR."""
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        yield from _table(found["config"], found["variants"])


def _table(config: str, variants: Sequence[Variant]) -> Iterator[str]:
    first = variants[0]
    keys = [key for key in first["values"] if len({str(_of(it, key)) for it in variants}) > 1]
    samples = _of(first, "train.mode") == "negative"
    said = [*_SHOWN, *(_SHOWN_OF_SAMPLES if samples else ())]
    shared = ", ".join(f"`{key}={_of(first, key)}`" for key in said if key not in keys)
    name = config.removeprefix("configs/").removesuffix(".yaml")
    yield f"[{name}](../{config}) with other values; in all rows {shared}:\n"
    yield pages.row(*(f"`{key}`" for key in keys), "steps", "MRR on valid", "MRR on test")
    yield "|" + "---:|" * (len(keys) + 3)
    for it in variants:
        cells = (str(_of(it, key)).lower() for key in keys)
        yield pages.row(
            *cells, f"{it['steps']:,}", f"{it['valid_mrr']:.4f}", f"{it['test_mrr']:.4f}"
        )
    yield ""
    threads = "1 thread" if first["threads"] == 1 else f"{first['threads']} threads"
    yield f"On {first['machine']}, {threads}: {packages(first['versions'])}.\n"


def _of(variant: Variant, key: str) -> Any:
    return variant["values"].get(key)
