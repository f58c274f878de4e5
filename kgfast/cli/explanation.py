"""``kgfast explain``: the training triples that influenced a prediction most."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli import flags
from kgfast.cli.common import command, ids_of, say, say_columns

_MEANING = (
    "Influence: rate x product of the gradients of two losses, summed over checkpoints. Above 0, "
    "a step on the training triple lowers the loss of the given triple; below 0, a step raises "
    "that loss."
)
Predicted = StrEnum("Predicted", {"head": "head", "tail": "tail"})


@command
def explain(
    run: flags.Run,
    head: Annotated[str, typer.Option(help="Head of the triple.")],
    relation: Annotated[str, typer.Option(help="Relation of the triple.")],
    tail: Annotated[str, typer.Option(help="Tail of the triple.")],
    top: Annotated[
        int, typer.Option(min=1, help="Number of highest and of lowest influences.")
    ] = 10,
    side: Annotated[
        Predicted, typer.Option(help="The predicted entity of the triple.")
    ] = Predicted.tail,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A file of the run, instead of all saved models; may be repeated."
        ),
    ] = None,
    as_json: flags.AsJson = False,
    out: flags.Out = None,
    trust: flags.Trust = False,
) -> None:
    """Show training triples for and against a triple (TracIn)."""
    from kgfast.extras.influence import tracin
    from kgfast.training import RunFolder
    from kgfast.training.build import device_of
    from kgfast.training.loading import names_of_run

    folder = RunFolder(run)
    config = folder.read_config()
    device = device_of(config)
    graph = folder.load_graph()
    vocabulary = entities, relations = names_of_run(folder, config, graph)
    named = [("--head", head, entities), ("--relation", relation, relations)]
    named += [("--tail", tail, entities)]
    influences = tracin(
        [run / name for name in checkpoint] if checkpoint else run,
        test=[[ids_of(option, [name], names) for option, name, names in named]],
        side=side.value,
        k=top,
        device=device,
        trust=trust,
        progress=sys.stdout.isatty() and not as_json,
    )
    columns = influences.columns(vocabulary)
    del columns["test"]
    if say_columns(columns, {"influence": ".3e"}, columns["kind"], as_json, out):
        stages = zip(influences.checkpoints, influences.rates, strict=True)
        said = ", ".join(f"{Path(name).name} (rate {rate:.3g})" for name, rate in stages)
        say(f"Checkpoints: {said}")
        say(_MEANING)
