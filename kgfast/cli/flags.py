"""Arguments and options of several commands."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Which = StrEnum("Which", "best last")  # checkpoints of a run
Split = StrEnum("Split", "test valid")  # splits to rank


def _checked(out: Path | None) -> Path | None:
    """Check the file of answers before any answer is computed."""
    if out is not None:
        from kgfast.frames import check_suffix

        check_suffix(out)
    return out


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as optim.lr=1e-3."),
]
DefaultOf = Annotated[
    str | None,
    typer.Option(
        metavar="complex|conve|cp|distmult|rescal|rotate|tntcomplex|transe",
        help="Instead of a config: the default config of this model.",
    ),
]
Graph = Annotated[Path | None, typer.Option(help="The folder of the graph, with its train.txt.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Folder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a model (`kgfast.save`).")
]
FoldersToRank = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="The folder of a run; or, with --data, of a model (`kgfast.save`). Several are "
        "compared with the first, and a folder of `train --seeds` stands for its runs.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the dataset, or a folder that contains it; dataset.root."),
]
Checkpoint = Annotated[Which, typer.Option(help="State of the model.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the Python code of a model or a loss that the run names."),
]
Known = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Known triples of a folder of `kgfast known`, or of a graph, instead of all splits.",
    ),
]
Types = Annotated[
    str | None,
    typer.Option(
        metavar="train|FILE",
        help="Candidates are only entities that the relation has in training, or in a file.",
    ),
]
Names = list[str] | None
Memory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="BYTES",
        help='For a folder of tables: memory for blocks of entities, such as "4GiB".',
    ),
]
Hits = Annotated[
    list[int] | None,
    typer.Option(
        "--hits", metavar="K", min=1, help="Report hits@K; may be repeated. 1, 3, 10 by default."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object per line instead of a table.")
]
Out = Annotated[
    Path | None,
    typer.Option(callback=_checked, help="Write a file instead: .csv, .tsv, .jsonl or .parquet."),
]
