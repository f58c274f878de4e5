"""A small trained run, and its data."""

import pytest

from support.small_runs import ring_trainer, write_ring


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_ring(folder / "ring")
    return folder


@pytest.fixture(scope="session")
def trained(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "ring"
    ring_trainer(root, folder).fit()
    return folder
