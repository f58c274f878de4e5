"""Fixtures of pages: a real browser."""

import shutil

import pytest

from support.browser import PROGRAMS, Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Yield a browser; skip where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    found = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield found
    finally:
        found.close()
