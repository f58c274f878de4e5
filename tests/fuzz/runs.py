"""Runs that are killed, whose disk is full, that are started twice, or whose graph changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fuzz.case import Case, expect
from fuzz.folders import scratch
from fuzz.processes import run_python
from kgfast.datasets import synthetic
from support.small_runs import write_ring

STEPS = 40
TRAIN = """
import json, os, signal, sys, threading, time
import kgfast
from kgfast.datasets import synthetic
from support.small_runs import write_ring
from kgfast.training import Config, Trainer
from kgfast.training.loop import Run

graph, config, folder, options = json.loads(sys.argv[1])
options = dict(options)
config["train"] |= options.get("train", {})
if "file_size" in options:
    from fuzz.processes import limit_files
step = Run._step
def watched(self, number):
    if number == options.get("moment"):
        if "seconds" in options:
            threading.Timer(options["seconds"], os.kill, (os.getpid(), signal.SIGKILL)).start()
        if "file_size" in options:
            limit_files(options["file_size"])
    return step(self, number)
Run._step = watched
replace, renames = os.replace, 0
def renaming(source, path):
    global renames
    renames += 1
    if renames == options.get("renames"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, path)
os.replace = renaming
dataset = synthetic(*graph)
trainer = Trainer(Config.from_dict(config), folder, dataset=dataset, progress=False)
print("ready", flush=True)
if "wait" in options:
    sys.stdin.readline()
try:
    trainer.fit(resume=options.get("resume", True))
except (OSError, ValueError, RuntimeError) as error:
    print("refused:", error)
    sys.exit(5)
if "seconds" in options:
    time.sleep(30)
"""


def kill(case: Case) -> None:
    """Kill a run at random moments, and resume: bit-equal to a run that nobody touched.

    A time to end by that never comes changes nothing.
    """
    with scratch() as path:
        limit = case.choice(({}, {"max_minutes": 1e3}, {"max_total_minutes": 1e3}))
        given = _given(case)
        _train(given, path / "straight")
        for _ in range(case.pick.randint(1, 3)):
            options: dict[str, Any] = {
                "moment": case.pick.randrange(STEPS),
                "seconds": round(case.pick.uniform(0, 0.05), 4),
                "train": limit,
            }
            if case.chance(0.5):  # or between two names, of which a run has about 60
                options = {"renames": case.pick.randint(1, 70)}
            case.note(**options)
            _train(given, path / "other", options, codes=(-9, 0))
            if (path / "other" / "result.json").exists():
                break
        _train(given, path / "other", {"train": limit})
        _expect_equal(path)


def disk(case: Case) -> None:
    """Fill the disk from some step on, then free it: the run ends bit-equal."""
    with scratch() as path:
        given = _given(case)
        _train(given, path / "straight")
        options = {
            "moment": case.pick.randrange(STEPS),
            "file_size": case.choice((0, 10, 1_000, 5_000, 20_000, 100_000)),
        }
        case.note(**options)
        _train(given, path / "other", options, codes=(5, 0, 1))
        _train(given, path / "other")
        _expect_equal(path)


def two_writers(case: Case) -> None:
    """Start two processes in one folder: one is refused, the other ends as if it were alone."""
    with scratch() as path:
        given = _given(case)
        _train(given, path / "straight")
        resumes = case.chance(0.5)
        arguments = json.dumps([*given, str(path / "other"), {"wait": 1, "resume": resumes}])
        command = [sys.executable, "-c", TRAIN, arguments]
        writers = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        for writer in writers:
            assert writer.stdout is not None
            line = writer.stdout.readline()
            while line and line != "ready\n":
                line = writer.stdout.readline()
        outputs = [writer.communicate("go\n", timeout=300)[0] for writer in _started(writers)]
        codes = sorted(writer.returncode for writer in writers)
        if not (resumes and codes == [0, 0]):  # one after the other is fine where it resumes
            expect(codes == [0, 5], f"exit codes {codes}: {outputs}")
        _expect_equal(path)


def _started(writers: list[Any]) -> list[Any]:
    """Tell both to begin, before either is waited for."""
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return writers


def graph(case: Case) -> None:
    """Reorder names, which changes nothing, or change a name or triple, which is an error."""
    with scratch() as path:
        root, run = path / "graph", path / "run"
        names, triples = _write_graph(case, root)
        config = path / "config.yaml"
        config.write_text(json.dumps(_config(case) | {"dataset": {"name": "x", "root": str(root)}}))
        first = _cli("train", "--config", str(config), "--run", str(run), "--quiet")
        expect(first[0] == 0, f"training ends with {first}")
        kept = {it.name: it.read_bytes() for it in run.iterdir() if it.is_file()}
        before = _cli("evaluate", str(run))
        how = case.choice(("reorder", "rename", "swap", "triple", "drop"))
        case.note(how=how)
        expect(before[0] == 0, f"evaluating ends with {before}")
        _change_graph(case, root, names, triples, how)
        after = _cli("evaluate", str(run))
        resumed = _cli("train", "--config", str(config), "--run", str(run), "--resume", "--quiet")
        if how == "reorder":
            expect(after == before, f"another order gives {after}, not {before}")
        else:
            expect(after[0] == 2, f"evaluate of another graph ({how}) ends with {after}")
            expect(resumed[0] == 2, f"resuming on another graph ({how}) ends with {resumed}")
        now = {it.name: it.read_bytes() for it in run.iterdir() if it.is_file()}
        for name in ("result.json", "best.safetensors", "last.safetensors", "metrics.jsonl"):
            expect(now.get(name) == kept.get(name), f"{name} of a finished run has changed")


def _write_graph(case: Case, root: Path) -> tuple[list[str], list[list[list[str]]]]:
    """Write a folder with a dictionary of names (official layout), which says the ids."""
    data = synthetic(60, 3, 200, 20, 20)
    names = [f"e{number:03d}" for number in range(60)]
    splits = [
        [[names[h], f"r{r}", names[t]] for h, r, t in split.hrt.tolist()]
        for split in (data.train, data.valid, data.test)
    ]
    _write(root, names, splits)
    return names, splits


def _write(root: Path, names: list[str], splits: list[list[list[str]]]) -> None:
    named = dict(zip(("train", "valid", "test"), splits, strict=True))
    write_ring(root, names, named, relations=[f"r{i}" for i in range(3)])


def _change_graph(
    case: Case, root: Path, names: list[str], splits: list[list[list[str]]], how: str
) -> None:
    names, splits = list(names), [[list(row) for row in rows] for rows in splits]
    place = case.pick.randrange(len(splits[0]))
    if how == "reorder":
        case.pick.shuffle(names)
    elif how == "rename":
        old = splits[0][place][0]
        names = ["zzz" if it == old else it for it in names]
        splits = [[["zzz" if it == old else it for it in row] for row in rows] for rows in splits]
    elif how == "swap":
        head, _, tail = splits[0][place]
        other = next(it for it in names if it not in (head, tail))
        splits[0][place][2] = other
    elif how == "triple":
        known = {tuple(row) for rows in splits for row in rows}
        new = next([h, "r0", t] for h in names for t in names if (h, "r0", t) not in known)
        splits[case.pick.randrange(3)].append(new)
    else:
        row = splits[0][place]
        splits = [[it for it in rows if it != row] for rows in splits]
    _write(root, names, splits)


def _cli(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kgfast", *arguments],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr[-1500:]


def _given(case: Case) -> list[Any]:
    return [[60, 3, 200, 20, 20], _config(case)]


def _config(case: Case) -> dict[str, Any]:
    optimizer = case.choice(("row_adam", "adam", "row_adagrad", "sgd"))
    negatives = case.choice(("shared", "per_row"))
    schedule = case.choice(("constant", "plateau", "cosine"))
    case.note(optim=optimizer, negatives=negatives, sched=schedule)
    return {
        "threads": 1,
        "dataset": {"name": "synthetic"},
        "model": {"name": case.choice(("rotate", "transe")), "base_dim": 8, "gamma": 6.0},
        "data": {"train_bs": 32, "neg_size": 8, "negatives": negatives},
        "optim": {"name": optimizer, "lr": 0.02},
        "sched": {"name": schedule},
        "train": {"steps": STEPS, "log_every": 1, "eval_every": 7, "save_every": 3}
        | ({"keep": 2} if case.chance(0.3) else {}),
    }


def _train(
    given: list[Any], folder: Path, options: Any = None, codes: tuple[int, ...] = (0,)
) -> None:
    arguments = json.dumps([*given, str(folder), options or {}])
    run_python(TRAIN, arguments, seconds=600, codes=codes)


def _expect_equal(path: Path) -> None:
    """Compare files, tensors, results and logs of two runs, but for times."""
    straight, other = path / "straight", path / "other"
    names = [sorted(it.name for it in folder.iterdir()) for folder in (straight, other)]
    expect(names[0] == names[1], f"the files differ: {names}")
    wanted, found = (load_file(it / "last.safetensors") for it in (straight, other))
    expect(wanted.keys() == found.keys(), "the states hold other tensors")
    for name, tensor in wanted.items():
        expect(torch.equal(tensor, found[name]), f"{name} differs from the untouched run's")
    results = [json.loads((it / "result.json").read_text()) for it in (straight, other)]
    for name in ("test", "valid", "steps", "best_step"):
        expect(results[0].get(name) == results[1].get(name), f"{name} of the result differs")
    logs = [
        [
            {key: it for key, it in json.loads(line).items() if key != "time"}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (straight, other)
    ]
    expect(logs[0] == logs[1], "the logs differ")
