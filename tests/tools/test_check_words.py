"""The rule of opening words: what it finds, and that the house keeps it."""

import subprocess
import sys

import check_words
import pytest

from support.paths import ROOT

TOOL = ROOT / "tools" / "check_words.py"
OFFENCES = {
    '"""Those of now."""': (1, "Those of now."),
    'def f():\n    """What is left."""': (2, "What is left."),
    'class A:\n    """The same in bytes."""': (2, "The same in bytes."),
    "x = 1  # of one batch": (1, "of one batch"),
    "\n# As in numpy,\n# in order.\nx = 1": (2, "As in numpy,"),
    "x = 1  # bytes\ny = 1  # how many": (2, "how many"),
    'def f():\n    """Count rows.\n\n    Whose ids are new."""': (2, "Whose ids are new."),
    'def f(x):\n    """Count.\n\n    x\n        Of rows.\n    """': (2, "Of rows."),
    "# Bytes of a row.\n# That is all.": (1, "That is all."),
}
CPP_OFFENCES = {
    "int a;  // of a row": (1, "of a row"),
    "\n// Those of a panel,\n// in order.": (2, "Those of a panel,"),
    "  // Bytes. What is left\n  // is zero.": (1, "What is left is zero."),
}
ALLOWED = (
    '"""Count rows.\n\n    Where there is none, return 0. As numpy does.\n    """',
    'def f():\n    """Offer a choice."""  # offset',
    'x = 1\n"""Those of now."""',
    "x = '# of one batch'",
    "# Counts, of which\n# those of rows are zero.",
)


@pytest.mark.parametrize("source", OFFENCES)
def test_an_opening_without_a_noun_is_named_with_its_line(source):
    line, text = OFFENCES[source]
    found = check_words.findings(source, "some/file.py")
    assert [it.line for it in found] == [line]
    assert str(found[0]) == f"some/file.py:{line}: begins without its noun: {text}"


@pytest.mark.parametrize("source", CPP_OFFENCES)
def test_a_comment_of_cpp_is_read_too(source):
    found = check_words.findings(source, "some/file.h")
    assert [(it.line, it.message.partition(": ")[2]) for it in found] == [CPP_OFFENCES[source]]
    assert check_words.findings('auto a = "http://of.example";  // its address', "a.cpp") != []
    assert check_words.findings('auto a = "http://of.example";', "a.cpp") == []


@pytest.mark.parametrize("source", ALLOWED)
def test_other_openings_pass(source):
    assert check_words.findings(source, "file.py") == []


def test_the_house_keeps_the_rule_and_a_file_that_does_not_fails(tmp_path):
    def said(*words):
        done = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True)
        return done.returncode, done.stdout

    assert said() == (0, "")
    path = tmp_path / "bad.py"
    path.write_text("x = 1  # of one batch\n")
    assert said(path) == (1, f"{path}:1: begins without its noun: of one batch\n")
