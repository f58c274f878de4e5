"""Threads of torch sleep while they wait, and the environment says nothing of it afterwards."""

import os
import subprocess
import sys

import pytest

from kgfast.openmp import VARIABLE

ENVIRONMENT = {key: it for key, it in os.environ.items() if key != VARIABLE}
AFTERWARDS = f"""
import os, sys
print(os.environ.get({VARIABLE!r}))
assert "_BeforeTorch" not in str(sys.meta_path)
assert "exec_module" not in vars(sys.modules["torch"].__loader__)
import inspect, torch
assert "torch" in inspect.getsource(torch)
"""


def policy_of(script: str, **settings: str) -> tuple[str, str]:
    """Return what GNU OpenMP read when it was loaded, and what the environment holds afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", script + AFTERWARDS],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "OMP_DISPLAY_ENV": "true", **settings},
        check=True,
    )
    lines = [it for it in done.stderr.splitlines() if VARIABLE in it]
    if not lines:
        pytest.skip("torch's OpenMP does not say what it has read")
    return lines[0].split("'")[1], done.stdout.strip()


@pytest.mark.parametrize(
    "script",
    [
        "import kgfast; kgfast.rank",
        *(
            pytest.param(script, marks=pytest.mark.slow)
            for script in (
                "import kgfast, torch",
                "import kgfast.ops",
                "import importlib.util, kgfast; importlib.util.find_spec('torch'); import torch",
            )
        ),
    ],
)
def test_threads_sleep_and_the_environment_is_as_before(script):
    assert policy_of(script) == ("PASSIVE", "None")


def test_torch_that_is_there_already_stays_as_it_is():
    assert policy_of("import torch, kgfast; kgfast.rank")[1] == "None"


@pytest.mark.slow
def test_a_policy_of_the_user_stands():
    assert policy_of("import kgfast, torch", OMP_WAIT_POLICY="ACTIVE") == ("ACTIVE", "ACTIVE")
    script = "import os, kgfast; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'; import torch"
    assert policy_of(script)[1] == "ACTIVE"
