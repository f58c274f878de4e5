"""Options that the scripts share, and how they are checked."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lib.machine import machine_tag
from lib.results import RESULTS

Parser = argparse.ArgumentParser
QUICK_SIZES = (500, 6, 1200, 60, 60)  # of the synthetic graph of a smoke test


def new_parser(doc: str | None, quick: str = "a tiny graph: seconds") -> Parser:
    """A parser that is described by the first line of a script's docstring, with ``--quick``."""
    parser = Parser(description=(doc or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def add_outputs(parser: Parser, default: str | None = None, *, plot: bool = True) -> None:
    """``--json`` and ``--plot``; ``default`` names the results that are written anyway."""
    where = f"results/<machine>-{default}.json unless given" if default else "write the rows"
    parser.add_argument("--json", type=Path, metavar="FILE", help=where)
    if plot:
        where = "beside the JSON unless given" if default else "draw them: .png, .svg or .pdf"
        parser.add_argument("--plot", type=Path, metavar="FILE", help=where)


def add_device(parser: Parser) -> None:
    """``--device``."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def set_defaults(options: argparse.Namespace, whole: dict[str, Any], quick: dict[str, Any]) -> None:
    """What an option is that was not given, in earnest and in a smoke test."""
    for name, value in (quick if options.quick else whole).items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def set_outputs(options: argparse.Namespace, name: str) -> None:
    """The files that are written unless others are named; a smoke test writes only those."""
    if options.quick:
        return
    tag = machine_tag(getattr(options, "device", "cpu"))
    options.json = options.json or RESULTS / f"{tag}-{name}.json"
    if "plot" in options:
        options.plot = options.plot or options.json.with_suffix(".png")


def check_positive(parser: Parser, options: argparse.Namespace, *names: str) -> None:
    """Each is at least 1, or not given."""
    for name in names:
        value = getattr(options, name)
        lowest = min(value) if isinstance(value, list) else value
        if lowest is not None and lowest < 1:
            flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
            parser.error(f"{flag} must be at least 1; got {lowest}")


def check_device(parser: Parser, options: argparse.Namespace) -> None:
    """A GPU is there if it is asked for."""
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")


def check_plot(parser: Parser, path: Path | None) -> None:
    """A picture can be drawn, which is found out now and not after the work."""
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--plot must end in .png, .svg or .pdf; got {path.name}")
    if find_spec("matplotlib") is None:
        parser.error('--plot needs matplotlib: pip install "kgfast[bench]"')
