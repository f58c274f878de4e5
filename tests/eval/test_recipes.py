"""The programs of docs/explanation/scale.md and examples/schedulers/ run as they stand."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import kgfast
from kgfast.distributed import count_range
from support.paths import ROOT
from support.shared_out import example, model_of, tables_of

PAGE = (ROOT / "docs/explanation/scale.md").read_text()
SCHEDULERS = ROOT / "examples/schedulers"
PROGRAMS = dict(re.findall(r'```py title="(\w+\.py)"\n(.*?)```', PAGE, re.DOTALL))
PROGRAMS |= {path.name: path.read_text() for path in SCHEDULERS.glob("*.py")}


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
PARTS = 8


def test_programs_are_found_and_compile():
    assert sorted(PROGRAMS) == [
        *("count_one.py", "graph.py", "merge_all.py", "ranking.py"),
        *("ranking_by_dask.py", "ranking_by_ray.py", "ranking_by_spark.py"),
    ]
    for name, text in PROGRAMS.items():
        compile(text, name, "exec")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run a program of the page in a folder with its arrays; return what the program prints."""
    graph, (entity, relation) = example(), tables_of("RotatE")
    tables = {"entity": entity, "relation": relation, "triples": graph.hrt, "known": graph.facts}
    for stem, values in tables.items():
        np.save(tmp_path / f"{stem}.npy", values.numpy())

    def run(*words: str, **environment: str) -> str:
        (name,) = (word for word in words if word in PROGRAMS)
        (tmp_path / name).write_text(PROGRAMS[name])
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def assert_prints_the_ranks(printed: str) -> None:
    graph = example()
    assert repr(kgfast.rank(model_of("RotatE"), graph.hrt, known=graph.known)) in printed


@pytest.mark.slow
@pytest.mark.timeout(340)
def test_torchrun_prints_the_ranks(run: Callable[..., str]) -> None:
    interface = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    assert_prints_the_ranks(run(*TORCHRUN, "ranking.py", **interface))


@pytest.mark.slow
@pytest.mark.timeout(340)
@pytest.mark.parametrize("package", ["dask.distributed", "ray", "pyspark"])
def test_a_scheduler_prints_the_ranks(package: str, run: Callable[..., str]) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    scheduler = package.removeprefix("py").split(".")[0]
    if scheduler == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    on_this_machine = {
        **{"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    assert_prints_the_ranks(run(f"ranking_by_{scheduler}.py", **on_this_machine))


@pytest.mark.slow
@pytest.mark.timeout(340)
def test_an_array_of_tasks_prints_the_ranks(run: Callable[..., str], tmp_path: Path) -> None:
    """Run each task as a process, and what merges them; without a part, the error names it."""
    assert f"--array=0-{PARTS - 1} --wrap 'python count_one.py {PARTS}'" in PROGRAMS["count_one.py"]
    with ThreadPoolExecutor(2) as pool:
        tasks = [{"SLURM_ARRAY_TASK_ID": str(part)} for part in range(PARTS)]
        list(pool.map(lambda task: run("count_one.py", str(PARTS), **task), tasks))
    assert_prints_the_ranks(run("merge_all.py"))
    (tmp_path / "counts" / "3.pt").unlink()
    with pytest.raises(AssertionError, match=r"ValueError: parts.*36"):
        run("merge_all.py")


def test_what_is_sent_is_what_the_page_says() -> None:
    """Counts cost the same of any range; known triples at most as much as the page says."""
    page = " ".join(PAGE.split())
    sent = re.search(r"sends (\d+) bytes a triple, and under ([\d,]+) bytes besides", page)
    a_triple, around = int(sent[1]), sent[2]
    hrt = example().hrt.repeat(50, 1)
    for part in ((0, 1), (10, 90)):
        sizes = [
            len(pickle.dumps(count_range(model_of("RotatE"), hrt[:rows], *part)))
            for rows in (1000, 2000)
        ]
        assert sizes[1] - sizes[0] == 1000 * a_triple
        assert sizes[0] - 1000 * a_triple < int(around.replace(",", ""))
    (limit,) = re.findall(r"`known` \(under (\d+) bytes a triple\)", page)
    one_each = torch.arange(5000)[:, None] * torch.tensor([1, 0, 1])  # no two share a query
    assert len(pickle.dumps(kgfast.KnownTriples(one_each))) < 5000 * int(limit)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_training_of_the_page_runs(tmp_path: Path) -> None:
    """Run the commands of the page, one after the other, in a fresh folder."""
    section = PAGE[PAGE.index("\n## Training\n") :]
    blocks = re.findall(r"```\w+(?: title=\"(.*?)\")?\n(.*?)```", section, re.DOTALL)
    for name, text in blocks[:2]:
        (tmp_path / name).write_text(text)
    torchrun = f"{sys.executable} -m torch.distributed.run"
    for line in ("python graph.py", *re.findall(r"^    ((?:torchrun|kgfast) .*)$", section, re.M)):
        command = line.replace("torchrun", torchrun).replace(
            "python graph", f"{sys.executable} graph"
        )
        command = re.sub(r"^kgfast", f"{sys.executable} -m kgfast", command)
        done = subprocess.run(
            command.split(),
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert "mrr" in done.stdout
    assert (tmp_path / "runs" / "rotate" / "best.safetensors").is_file()
