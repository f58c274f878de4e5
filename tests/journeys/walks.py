"""The walks of new users, and the files that they bring along."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from journeys.walk import Page, Walk
from support.paths import DATA

_CAPITALS = ("Q64", "Q90", "Q220", "Q183", "Q142", "Q38")
_FACTS = "Q90\tP1376\tQ142\nQ220\tP1376\tQ38\n"
_WN18RR = DATA / "wn18rr"
_RANKED = 20  # triples of valid and of test, of WN18RR
_ROWS, _FEATURES = 1_000_000, 64


def _triples_of_capitals() -> Mapping[str, str]:
    _write_splits(Path("data"), _FACTS)
    return {"DIR": "data"}


def _million() -> Mapping[str, str]:
    """Write a table of a million rows, and triples, under the names that the page reads."""
    random = np.random.default_rng(0)
    np.save("entity.npy", random.standard_normal((_ROWS, _FEATURES), dtype=np.float32))
    np.save("relation.npy", random.standard_normal((2, _FEATURES), dtype=np.float32))
    names = [*_CAPITALS, *(f"E{row}" for row in range(len(_CAPITALS), _ROWS))]
    Path("entities.txt").write_text("\n".join(names) + "\n")
    _write_splits(Path("facts"), _FACTS)
    return {}


def _small_graph() -> Mapping[str, str]:
    """Write triples for commands that name a graph of the reader's own."""
    lines = [f"e{i}\tr{i % 3}\te{(7 * i + i // 20) % 40}\n" for i in range(400)]
    _write_splits(Path("data"), "".join(lines[:360]), "".join(lines[360:380]), "".join(lines[380:]))
    return {"DIR": "data"}


def _wn18rr() -> Mapping[str, str]:
    """Write WN18RR with few triples to rank: at d = 512 all of them take two cores too long."""
    found = {split: (_WN18RR / f"{split}.txt").read_text() for split in ("train", "valid", "test")}
    few = ["".join(found[it].splitlines(keepends=True)[:_RANKED]) for it in ("valid", "test")]
    _write_splits(Path("wn18rr"), found["train"], *few)
    return {"DIR": "."}


def _write_splits(folder: Path, train: str, valid: str = "", test: str = "") -> None:
    folder.mkdir()
    for split, text in {"train": train, "valid": valid or train, "test": test or train}.items():
        (folder / f"{split}.txt").write_text(text)


WALKS = (
    Walk("from PyKEEN", (Page("docs/tutorials/pykeen.md"),), needs=("pykeen",)),
    Walk(
        "own vectors",
        (Page("docs/tutorials/own_tables.md"),),
        _triples_of_capitals,
        ("fastapi", "uvicorn"),
    ),
    Walk(
        "a million vectors",
        (Page("docs/tutorials/own_tables.md", ("2. A folder", "Larger than memory")),),
        _million,
        ("fastapi", "uvicorn"),
    ),
    Walk(
        "an own model",
        (
            Page("docs/how-to/own_model.md"),
            Page("docs/how-to/callbacks.md", ("",)),  # other sections need accounts
            Page("docs/how-to/any_scorer.md"),
            Page("docs/reference/losses.md"),
        ),
        _small_graph,
    ),
    Walk(
        "train and publish",
        (Page("docs/tutorials/train_and_publish.md"),),
        needs=("matplotlib", "jinja2", "fastapi", "uvicorn"),
    ),
    Walk(
        "five reports",
        (Page("docs/explanation/reports.md"),),
        _wn18rr,
        needs=("matplotlib", "jinja2"),
        data=_WN18RR,
    ),
)
