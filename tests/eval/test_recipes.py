"""The programs of docs/scale.md run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kgfast
from support.paths import ROOT
from support.shared_out import example, model_of, tables_of

PAGE = (ROOT / "docs" / "scale.md").read_text()
PROGRAMS = dict(re.findall(r'```py title="(\w+\.py)"\n(.*?)```', PAGE, re.DOTALL))


def test_programs_are_found_and_compile():
    assert sorted(PROGRAMS) == ["graph.py", "ranking.py", "ranking_by_dask.py"]
    for name, text in PROGRAMS.items():
        compile(text, name, "exec")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["ranking.py", "ranking_by_dask.py"])
def test_a_program_prints_the_ranks(name: str, tmp_path: Path) -> None:
    command = [sys.executable]
    if name == "ranking.py":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    else:
        pytest.importorskip("dask.distributed")
    graph, (entity, relation) = example(), tables_of("RotatE")
    known = graph.known._tails.triples()
    for stem, values in (
        ("entity", entity.numpy()),
        ("relation", relation.numpy()),
        ("triples", graph.hrt.numpy()),
        ("known", known),
    ):
        np.save(tmp_path / f"{stem}.npy", np.asarray(values))
    (tmp_path / name).write_text(PROGRAMS[name])
    environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    done = subprocess.run(
        [*command, name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = kgfast.rank(model_of("RotatE"), graph.hrt, known=graph.known)
    assert repr(expected) in done.stdout


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
    assert len(list((tmp_path / "runs" / "rotate" / "shards").iterdir())) == 6
