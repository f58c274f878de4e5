"""``kgfast plan``: predicted needs of a ranking."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli.common import Debug, app, errors_in_a_line, say
from kgfast.cli.evaluation import Sides

Device = StrEnum("Device", "cpu a100 h100 h200 b200")


class Kind(StrEnum):
    """Models with different scores."""

    rotate = "rotate"
    transe = "transe"
    transe_l2 = "transe-l2"
    distmult = "distmult"
    complex = "complex"


Dtype = StrEnum("Dtype", "float16 bfloat16 float32 float64")
PlanFormat = StrEnum("PlanFormat", "text json")


@app.command()
def plan(
    entities: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Rows, such as 91e6.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, help="Features; complex features of RotatE and ComplEx.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Triples to rank, or queries.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of the table.")] = Dtype.float32,
    model: Annotated[Kind, typer.Option(help="Model with the score.")] = Kind.rotate,
    side: Annotated[
        list[Sides] | None,
        typer.Option(metavar="head|tail", help="Head or tail; both unless given."),
    ] = None,
    known: Annotated[str, typer.Option(metavar="NUMBER", help="Known triples to filter by.")] = "0",
    top: Annotated[
        int | None, typer.Option(min=1, help="The best K of each query, instead of ranks.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Machines that share the rows.")] = 1,
    device: Annotated[
        Device, typer.Option(help="This machine, by --calibrate or by default; a GPU, predicted.")
    ] = Device.cpu,
    disk: Annotated[
        str | None, typer.Option(metavar="RATE", help="Disk rate of each worker, such as 2GB/s.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="Network rate of each worker, such as 25Gb/s; 10Gb/s by default."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Memory for blocks and queries, such as 4GiB."),
    ] = None,
    from_file: Annotated[
        bool | None,
        typer.Option(
            "--from-file/--in-memory",
            help="Read in blocks, or from memory; by default from memory if the table fits.",
            show_default=False,
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine first: some minutes.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="With --calibrate: a folder on the disk to measure.")
    ] = None,
    format: Annotated[
        PlanFormat, typer.Option(help="A table, or a JSON object.")
    ] = PlanFormat.text,
    debug: Debug = False,
) -> None:
    """Predict memory, time and the bottleneck of a ranking."""
    with errors_in_a_line(debug):
        from kgfast.extras.planning.devices import rates_of
        from kgfast.extras.planning.plan import planned
        from kgfast.extras.planning.work import Work, bytes_per_second, count_of

        if calibrate:
            _calibrate(folder)
        missing = [
            f"--{name}"
            for name, value in (("entities", entities), ("dim", dim), ("queries", queries))
            if value is None
        ]
        if missing and not (calibrate and len(missing) == 3):
            raise ValueError(f"a plan needs {', '.join(missing)}")
        if entities is None or dim is None or queries is None:
            return
        rates = _rates_of_this_machine() if device is Device.cpu else rates_of(device.value)
        work = Work(
            count_of(entities),
            dim,
            count_of(queries),
            dtype.value,
            model.value,
            len(_sides(side)),
            count_of(known),
            top,
            workers,
        )
        limit = None
        if max_memory is not None:
            from kgfast.storage import memory_limit

            limit = memory_limit(max_memory)
        found = planned(
            work,
            rates,
            disk=None if disk is None else bytes_per_second(disk),
            network=None if network is None else bytes_per_second(network),
            max_memory=limit,
            streamed=from_file,
        )
        if format is PlanFormat.json:
            say(json.dumps(found.as_dict(), indent=1))
        else:
            _print(found, work)


def _calibrate(folder: Path | None) -> None:
    """Measure this machine, and print how long that took."""
    from kgfast.extras.planning.calibration import calibrate
    from kgfast.extras.planning.rates import save_rates

    say("measuring kernels and disk: some minutes", err=True)
    start = time.perf_counter()
    path = save_rates(calibrate(folder))
    say(f"measured in {_seconds(time.perf_counter() - start)}, stored in {path}", err=True)


def _rates_of_this_machine() -> Any:
    """Return the measured rates, or the default rates if these cannot be read."""
    from kgfast.extras.planning.devices import default_rates
    from kgfast.extras.planning.rates import load_rates

    try:
        return load_rates()
    except FileNotFoundError:
        return default_rates()
    except ValueError as error:
        say(f"warning: {error}", err=True)
        return default_rates()


def _sides(side: list[Sides] | None) -> set[Sides]:
    """Return the sides to rank; relations are few and need no plan."""
    found = set(side or (Sides.head, Sides.tail))
    if Sides.relation in found:
        raise ValueError("--side relation: relations are few, and need no plan; give head or tail")
    return found


def _print(found: Any, work: Any) -> None:
    """Print a line for each fact."""
    each = " of each worker" if work.workers > 1 else ""
    passes = f"{found.passes} passes" if found.passes > 1 else "one pass"
    how = f"read from a file in blocks, {passes}" if found.streamed else "in memory"
    process = f", of which {_bytes(found.process_bytes)} the process" if found.process_bytes else ""
    lines = [
        ("table", f"{_bytes(found.table_bytes)} in all, {how}"),
        ("memory", f"{_bytes(found.memory_bytes)}{each}{process}"),
        ("compute", _seconds(found.compute_seconds)),
    ]
    if found.disk_seconds is not None:
        lines.append(("disk", f"{_seconds(found.disk_seconds)}, {_bytes(found.read_bytes)}{each}"))
    if work.workers > 1:
        lines.append(
            ("network", f"{_seconds(found.network_seconds)}, {_bytes(found.sent_bytes)}{each}")
        )
    if found.load_seconds:
        lines.append(("loading", _seconds(found.load_seconds)))
    lines += [
        ("total", _seconds(found.total_seconds)),
        ("binding", found.binding),
        ("rates", f"{found.source}; trained tables can take half of the compute"),
    ]
    for name, text in lines:
        say(f"{name:<9}{text}")


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def _seconds(value: float) -> str:
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"
