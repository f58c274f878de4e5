"""YAML of configs: a page of plain values, from any writer.

An error names file and line of: aliases (a few hundred bytes of aliases can stand for more values
than memory holds), keys that are repeated or no words, deep nesting, numbers of hundreds of digits,
and files beyond 128 KiB.
"""

import re
from typing import Any

import yaml

from kgfast.text import in_a_line, shown

MOST_BYTES = 128 << 10
DEEPEST = 24
_LONGEST_NUMBER = 100


class _Loader(yaml.SafeLoader):
    """Safe loader of PyYAML that resists hostile files."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _wrong(event, "aliases (*name) are not read; repeat the value")
        if self.depth == DEEPEST:
            raise _wrong(event, f"nested more than {DEEPEST} levels deep")
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
            raise _wrong(node, f"a number of {len(node.value):,} characters")
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong(key, "a key must be a word, not a list or a mapping")
            if key.value in seen:  # YAML would silently keep the last
                raise _wrong(key, f"key {shown(key.value)} was given before")
            seen.add(key.value)
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
            raise _wrong(node, f"not a value of its kind: {shown(node.value)}") from None


class _Dumper(yaml.SafeDumper):
    """Dumper that repeats equal values, since `parse` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (_Loader, _Dumper):  # YAML 1.1 takes 1e-3 for text
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+"),
        list("-+.0123456789"),
    )


def parse(text: str, source: object, numbered: bool = True) -> Any:
    """Return the values of a YAML text, or raise a ValueError ``source:line: problem``.

    The error names the line if ``numbered``.

    Examples
    --------
    >>> parse("model: {name: rotate}", "a.yaml")
    {'model': {'name': 'rotate'}}
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{source}: {len(text):,} characters; YAML is read up to {MOST_BYTES:,}")
    try:
        return yaml.load(text, _Loader)  # noqa: S506, a SafeLoader
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"not valid YAML: character #x{error.character:04x} is not allowed"
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = in_a_line(error.problem or error.context or "malformed")
        if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError):
            problem = f"not valid YAML: {problem}"
    raise ValueError(f"{source}{f':{line}' if numbered else ''}: {problem}")


def dump(values: Any) -> str:
    r"""Return values as YAML that `parse` reads, keys in their order.

    Examples
    --------
    >>> dump({"b": [1, 2], "a": "x"})
    'b:\n- 1\n- 2\na: x\n'
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def _wrong(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
