"""docs/reference/config.md is what the schema says, and says something of every key."""

import doctest
import importlib.util

import pytest

from kgfast.training import Config
from kgfast.training.config.files import packaged_configs
from kgfast.training.config.schema import _keys
from kgfast.training.config.sections import Section
from support.paths import ROOT


@pytest.fixture
def config_page():
    spec = importlib.util.spec_from_file_location("config_page", ROOT / "tools/config_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_lists_every_key_and_every_config(config_page):
    page = config_page.page()
    sections = {prefix for prefix, _ in config_page.sections(Config, "")}
    for key in _keys(Config):
        if f"{key}.KEY" in sections:
            assert f"## `{key}.KEY`" in page
        elif key in sections:
            assert f"## `{key}`" in page
        else:
            (line,) = (it for it in page.split("\n") if it.startswith(f"| `{key}` |"))
            assert len(line.split(" | ")) == 4
            assert all(cell.strip(" |") for cell in line.split(" | ")), line
    assert all(f"`{name}`" in page for name in packaged_configs())


def test_a_key_without_a_meaning_is_refused(config_page):
    class Undocumented(Section):
        seed: int = 0
        """Known."""
        device: str = "auto"

    with pytest.raises(ValueError, match="no text says what device means"):
        list(config_page.rows(Undocumented, ""))


def test_its_doctests(config_page):
    assert doctest.testmod(config_page).failed == 0
