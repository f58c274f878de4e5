"""readme_table.py: the block of the README, from rows that a benchmark wrote."""


def test_readme_table_is_updated_and_checked(call, tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    results.mkdir()
    done = call("eval_mem.py", "--quick", "--dims", 8, "--json", results / "cpu-eval-mem.json")
    assert done.returncode == 0, done.stderr
    where = ("--results", results, "--page", readme)
    readme.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    assert call("readme_table.py", *where, "--check").returncode == 1
    assert call("readme_table.py", *where).returncode == 0
    assert call("readme_table.py", *where, "--check").returncode == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- results:begin -->\n| | ")
    assert text.endswith("<!-- results:end -->\nafter\n")
    assert "peak memory beyond the inputs, whole test set, dim 8" in text
    assert " GPU |" in text
    assert "python benchmarks/eval_mem.py --quick" in text


def test_readme_table_needs_its_markers(call, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("no markers")
    done = call("readme_table.py", "--results", tmp_path, "--page", readme)
    assert done.returncode == 1
    assert "results:begin" in done.stderr
    assert readme.read_text() == "no markers"
