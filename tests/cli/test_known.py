"""``kgfast known``: an index in a folder, and errors in a line."""

import kgfast
from support.commands import run


def test_files_become_a_folder(tmp_path):
    (tmp_path / "a.tsv").write_text("0\t0\t1\n0\t0\t2\n")
    (tmp_path / "b.tsv").write_text("0\t0\t1\n3\t1\t1\n")
    files = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    result = run("known", *files, "--out", tmp_path / "known")
    assert result.exit_code == 0, result.stderr
    known = kgfast.KnownTriples.open(tmp_path / "known")
    last = result.stdout.replace("\n", "")
    assert f"{known!r}, checksum {known.checksum}" in last
    assert len(known) == 3
    result = run("known", *files, "--out", tmp_path / "known")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is there already" in result.stderr


def test_bad_lines_are_named(tmp_path):
    (tmp_path / "a.tsv").write_text("0\t0\t1\n0\t0\tx\n")
    result = run("known", tmp_path / "a.tsv", "--out", tmp_path / "known")
    assert result.exit_code == 2
    assert "a.tsv:2: tail 'x' is not an integer" in result.stderr
