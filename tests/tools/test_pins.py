"""Checks of a release: versions and pins."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kgfast
from support.paths import ROOT


def test_versions_are_those_of_the_package():
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert cited == [kgfast.__version__]
    assert newest in (kgfast.__version__, "Unreleased")
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_actions_are_pinned_by_digest_and_packages_by_hash():
    workflows = [path.read_text() for path in (ROOT / ".github/workflows").iterdir()]
    used = [it for workflow in workflows for it in re.findall(r"uses: (\S+)", workflow)]
    assert len(used) > 8
    assert [it for it in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", it)] == []
    assert len(pins(".github/build.txt")) > 5


def pins(path):
    """Return the versions of a list of packages, each of which has hashes."""
    found = {}
    text = re.sub(r"^#.*\n", "", (ROOT / path).read_text(), flags=re.M)
    for entry in text.replace("\\\n", " ").splitlines():
        pin, *hashes = re.split(r"\s+--hash=sha256:", entry.rstrip())
        assert hashes, entry
        assert all(re.fullmatch("[0-9a-f]{64}", it) for it in hashes), entry
        name, version = re.fullmatch(r"([\w.-]+)==([^\s;]+)( ; .+)?", pin).groups()[:2]
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


LISTS = {
    "package": (),
    "serve": ("serve",),
    "develop": ("test", "bench", "docs"),
    "release": ("release",),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_packages_hold_what_the_package_asks_for(name):
    """A changed requirement without `make lock` fails here."""
    found, develop = pins(f"requirements/{name}.txt"), pins("requirements/develop.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = list(project["project"]["dependencies"] + project["build-system"]["requires"])
    for extra in LISTS[name]:
        asked += project["project"]["optional-dependencies"][extra]
    for requirement in map(Requirement, asked):
        if requirement.name != "torch":
            (version,) = found[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, requirement
    assert {it: found[it] for it in found.keys() & develop} == {
        it: develop[it] for it in found.keys() & develop
    }


def test_torch_has_one_version():
    (line,) = re.findall(r"^torch==(.+)$", (ROOT / "requirements/torch.txt").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (metadata,) = project["tool"]["uv"]["dependency-metadata"]
    assert (metadata["name"], metadata["version"]) == ("torch", line)
