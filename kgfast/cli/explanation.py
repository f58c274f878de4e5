"""``kgfast explain``: the training triples that influenced a prediction most."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli import flags
from kgfast.cli.common import check_out, command, json_line, print_columns, say

_MEANING = (
    "Influence: rate x product of the gradients of two losses, summed over checkpoints. Above 0, "
    "a step on the training triple lowers the loss of the given triple; below 0, a step raises "
    "that loss."
)


class Predicted(StrEnum):
    """Predicted entity of a triple."""

    head = "head"
    tail = "tail"


@command
def explain(
    run: flags.Run,
    head: Annotated[str, typer.Option(help="Head of the triple.")],
    relation: Annotated[str, typer.Option(help="Relation of the triple.")],
    tail: Annotated[str, typer.Option(help="Tail of the triple.")],
    top: Annotated[int, typer.Option(min=1, help="Number of proponents and of opponents.")] = 10,
    side: Annotated[
        Predicted, typer.Option(help="The predicted entity of the triple.")
    ] = Predicted.tail,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A file of the run, instead of all saved models; may be repeated.",
        ),
    ] = None,
    as_json: flags.AsJson = False,
    out: flags.Out = None,
    trust: flags.Trust = False,
) -> None:
    """Show training triples for and against a triple (TracIn)."""
    from kgfast.extras.influence import tracin
    from kgfast.frames import write_columns
    from kgfast.training import RunFolder
    from kgfast.training.build import device_of
    from kgfast.training.loading import names_of_run

    check_out(out)
    folder = RunFolder(run)
    config = folder.read_config()
    device = device_of(config)
    graph = folder.load_graph()
    entities, relations = own = names_of_run(folder, config, graph)
    triple = []
    for option, name, names in (
        ("--head", head, entities),
        ("--relation", relation, relations),
        ("--tail", tail, entities),
    ):
        try:
            triple.append(int(names.ids([name])))
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None
    found = tracin(
        [run / name for name in checkpoint] if checkpoint else run,
        test=[triple],
        side=side.value,
        k=top,
        device=device,
        trust=trust,
        progress=sys.stdout.isatty() and not as_json,
    )
    columns = found.columns(own)
    del columns["test"]
    if out is not None:
        say(str(write_columns(columns, out)))
        return
    if as_json:
        for row in zip(*columns.values(), strict=True):
            say(json_line(dict(zip(columns, row, strict=True))))
        return
    count = len(columns["kind"])
    printed = print_columns(columns, {"influence": ".3e"}, columns["kind"])
    if printed < count:
        say(f"{count - printed:,} more: --json or --out FILE")
    stages = zip(found.checkpoints, found.rates, strict=True)
    said = ", ".join(f"{Path(name).name} (rate {rate:.3g})" for name, rate in stages)
    say(f"Checkpoints: {said}")
    say(_MEANING)
