"""Threads of torch sleep while they wait, and programs that are started later do not inherit it."""

import os
import subprocess
import sys

import pytest

VARIABLE = "OMP_WAIT_POLICY"
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != VARIABLE}


@pytest.mark.parametrize(
    ("script", "before", "policy", "afterwards"),
    [
        ("import kgfast; kgfast.rank", {}, "PASSIVE", "None"),
        pytest.param("import kgfast, torch", {}, "PASSIVE", "PASSIVE", marks=pytest.mark.slow),
        pytest.param("import torch, kgfast; kgfast.rank", {}, "", "None", marks=pytest.mark.slow),
        pytest.param(
            "import kgfast; kgfast.rank",
            {VARIABLE: "ACTIVE"},
            "ACTIVE",
            "ACTIVE",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_policy_that_openmp_reads(script, before, policy, afterwards):
    done = subprocess.run(
        [sys.executable, "-c", f"import os; {script}; print(os.environ.get({VARIABLE!r}))"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "OMP_DISPLAY_ENV": "true", **before},
        check=True,
    )
    assert done.stdout.strip() == afterwards
    lines = [line for line in done.stderr.splitlines() if VARIABLE in line]
    if not lines:
        pytest.skip("torch's OpenMP does not say what it has read")
    assert not policy or lines[0].split("'")[1] == policy
