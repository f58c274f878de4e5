"""Checks of a release: versions, protections of the extension, pins."""

import importlib.util
import re
import shutil
import struct
import sys
import tomllib

import check_wheel
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import ROOT

CHANGES = {
    "RELRO": (struct.pack("<I", 0x6474E552), struct.pack("<I", 0)),
    "stack protectors": (b"__stack_chk_fail", b"__stack_chk_none"),
}


@pytest.fixture
def extension():
    spec = importlib.util.find_spec("kgfast.kernels._cpu")
    if spec is None or sys.platform != "linux":
        pytest.skip("no extension of Linux")
    with open(spec.origin, "rb") as file:
        return file.read()


def test_the_extension_is_hardened(extension):
    assert check_wheel.hardening_missing(extension) == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_missing_protection_is_named(extension, name):
    assert check_wheel.hardening_missing(extension.replace(*CHANGES[name])) == [name]


def test_late_binding_and_an_executable_stack_are_named(extension):
    start = struct.unpack_from("<Q", extension, 32)[0]
    size, count = struct.unpack_from("<HH", extension, 54)
    changed = bytearray(extension)
    for place in range(start, start + size * count, size):
        kind, flags = struct.unpack_from("<II", extension, place)
        if kind == 0x6474E551:  # PT_GNU_STACK
            struct.pack_into("<I", changed, place + 4, flags | 1)
        if kind == 2:  # PT_DYNAMIC
            first, _, _, length = struct.unpack_from("<QQQQ", extension, place + 8)
            for tag in range(first, first + length, 16):
                if struct.unpack_from("<Q", extension, tag)[0] in (24, 30, 0x6FFFFFFB):
                    struct.pack_into("<QQ", changed, tag, 0x6FFFFEF5, 0)
    missing = check_wheel.hardening_missing(bytes(changed))
    assert missing == ["immediate binding", "a stack that is not executable"]


FILES = ("kgfast/__init__.py", "CITATION.cff", "CHANGELOG.md")


@pytest.fixture
def checkout(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_versions_are_those_of_the_package(checkout):
    import kgfast

    assert check_wheel.check_versions() == kgfast.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("name", "old", "new", "error"),
    [
        ("CITATION.cff", r"\nversion: .*", "\nversion: 9.9.9", "CITATION.cff is of ..9.9.9"),
        ("CHANGELOG.md", r"\[\d.+?\]", "[9.9.9]", "CHANGELOG.md begins with 9.9.9"),
    ],
)
def test_another_version_is_refused(checkout, name, old, new, error):
    path = checkout / name
    path.write_text(re.sub(old, new, path.read_text(), count=1))
    with pytest.raises(SystemExit, match=error):
        check_wheel.check_versions(checkout)


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
