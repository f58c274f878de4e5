"""Hostile YAML: one line of error, at once."""

import re
import time

import pytest

from kgfast import safe_yaml
from kgfast.training import Config
from kgfast.training.config.schema import override
from support.paths import ROOT

SCREEN = 600  # characters that fit a message


def bomb(levels=12):
    """Under a kilobyte that stand for 9 ** levels values."""
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(rows)


HOSTILE = {
    "alias bomb": (bomb(), 2, "aliases (*name) are not read"),
    "an alias to itself": ("a: &a [*a]", 1, "aliases (*name) are not read"),
    "a merged alias": ("a: &a {b: 1}\nc:\n  <<: *a", 3, "aliases (*name) are not read"),
    "flow depth": ("[" * 50_000, 1, "nested more than 24 levels deep"),
    "block depth": ("- " * 30_000, 1, "nested more than 24 levels deep"),
    "mapping depth": ("{a: " * 20_000, 1, "nested more than 24 levels deep"),
    "a list as key": ("a: 1\n? [a, b]\n: 2", 2, "a key must be a word"),
    "a mapping as key": ("? {a: b}\n: 2", 1, "a key must be a word"),
    "many digits": (f"a: 1\nb: {'9' * 5000}", 2, "a number of 5,000 characters"),
    "many hex digits": (f"b: 0x{'f' * 5000}", 1, "a number of 5,002 characters"),
    "base 60": (f"b: 1{':1' * 5000}", 1, "a number of 10,001 characters"),
    "a long float": (f"b: {'9' * 5000}.5", 1, "a number of 5,002 characters"),
    "no such day": ("a: 1\nb: 2024-99-99", 2, "not a value of its kind: '2024-99-99'"),
    "no int": ("b: !!int x", 1, "not a value of its kind: 'x'"),
    "no float": ("b: !!float [1]", 1, "expected a scalar node"),
    "no time": ("b: !!timestamp x", 1, "not a value of its kind: 'x'"),
    "no set": ("b: !!set [x]", 1, "expected a mapping node"),
    "no pairs": ("b: !!omap {x: 1}", 1, "expected a sequence"),
    "an object": ("b: !!python/object/apply:os.system [ls]", 1, "could not determine"),
    "a long tag": (f"b: !{'t' * 20_000} x", 1, "could not determine"),
    "a long alias": (f"b: *{'t' * 20_000}", 1, "aliases (*name) are not read"),
    "a long key twice": (f"{'k' * 900}: 1\n{'k' * 900}: 2", 2, "was given before"),
    "a control character": ("a: 1\nb: \x01", 2, "character #x0001 is not allowed"),
    "two documents": ("a: 1\n---\nb: 1", 2, "but found another document"),
    "too long": ("a: 1\n" * 60_000, None, "YAML is read up to 131,072"),
}
hostile = pytest.mark.parametrize(("text", "line", "problem"), HOSTILE.values(), ids=HOSTILE.keys())


@hostile
def test_hostile_text_is_refused_in_a_line(tmp_path, text, line, problem):
    """By the parser and by configs alike."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    for read in (lambda it: safe_yaml.parse(text, it), Config.from_yaml):
        start = time.process_time()
        said = re.escape(problem)
        with pytest.raises(ValueError, match=said) as error:
            read(path)
        assert time.process_time() - start < 5
        message = str(error.value)
        assert message.startswith(f"{path}: " if line is None else f"{path}:{line}: ")
        assert len(message) <= SCREEN + len(str(path))
        assert "\n" not in message


def test_an_override_is_read_the_same_way():
    values: dict[str, object] = {}
    for text in ("optim.lr=" + "[" * 5000, "optim.lr=" + "9" * 5000, "a." * 5000 + "b=1"):
        with pytest.raises(ValueError, match=r"^--set ") as error:
            override(values, [text])
        assert len(str(error.value)) <= SCREEN


def test_what_is_written_is_read_back():
    shared = [0.5, 0.9]
    values = {"b": shared, "a": shared, "lr": 1e-3, "name": "1e-3", "none": None}
    assert safe_yaml.parse(safe_yaml.dump(values), "a.yaml") == values
    assert list(safe_yaml.parse(safe_yaml.dump(values), "a.yaml")) == list(values)


def test_nothing_reads_yaml_by_itself():
    readers = [
        path.name
        for path in ROOT.glob("kgfast/**/*.py")
        if re.search(r"^\s*(import yaml|from yaml)\b", path.read_text(), re.MULTILINE)
    ]
    assert readers == ["safe_yaml.py"]


def test_values_of_configs_are_cut(tmp_path):
    long, path = "x" * 20_000, tmp_path / "a.yaml"
    for text in (
        f"seed: {long}",
        f"{long}: 1",
        f"optim: {{{long[:1000]}: 1}}",
        f"model: {{name: {long}}}",
        f"dataset: {{name: {long}, root: {long}}}",
        f"med: {{dims: [{'2, ' * 1000}1]}}",
        f"optim: [{'a, ' * 1000}1]",
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(str(path))) as error:
            Config.from_yaml(path)
        for line in str(error.value).split("\n"):
            assert len(line) <= SCREEN + len(str(tmp_path)), line[:200]
