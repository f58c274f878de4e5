"""docs/reference/config.md is what the schema says, and says something of every key."""

import doctest

import config_page
import pytest

from kgfast.training import Config
from kgfast.training.config import packaged_configs
from kgfast.training.config.schema import _keys
from kgfast.training.config.sections import Section


def test_it_lists_every_key_and_every_config():
    page = config_page.page()
    sections = {prefix for prefix, _ in config_page.sections(Config, "")}
    for key in (it for it in _keys(Config) if not it.startswith("search.ranges.")):
        if f"{key}.KEY" in sections:
            assert f"## `{key}.KEY`" in page
        elif key in sections:
            assert f"## `{key}`" in page
        else:
            (line,) = (it for it in page.split("\n") if it.startswith(f"| `{key}` |"))
            assert len(line.split(" | ")) == 4
            assert all(cell.strip(" |") for cell in line.split(" | ")), line
    assert all(f"`{name}`" in page for name in packaged_configs())


def test_a_key_without_a_meaning_is_refused():
    class Undocumented(Section):
        seed: int = 0
        """Known."""
        device: str = "auto"

    with pytest.raises(ValueError, match="no text says what device means"):
        list(config_page.rows(Undocumented, ""))


def test_its_doctests():
    assert doctest.testmod().failed == 0
