"""The tables of docs/influence.md and docs/paths.md, and what their numbers promise."""


def test_the_pages_are_up_to_date(call):
    done = call("reports_page.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_page_that_says_something_else_is_named(load, monkeypatch, tmp_path, capsys):
    script = load("reports_page")
    (tmp_path / "docs").mkdir()
    for name in ("influence", "paths"):
        page = f"{script.pages.BEGIN}\nold\n{script.pages.END}\n"
        (tmp_path / "docs" / f"{name}.md").write_text(page)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["reports_page.py", "--check"])
    assert script.main() == 1
    assert "paths.md is out of date" in capsys.readouterr().err


def test_what_was_measured_is_what_was_asked_for(load):
    script = load("reports_page")
    influence, paths = (
        script.read_rows(script.RESULTS / name) for name in (script.INFLUENCE, script.PATHS)
    )
    whole = {row["dataset"]: row for row in influence if row["section"] == "whole"}
    assert whole["wn18rr"]["examples"] == 173_670
    assert all(row["tests"] == 100 and row["dim"] == 200 for row in whole.values())
    assert whole["wn18rr"]["peak_bytes"] <= 64 << 20
    compared = [row["relative_difference"] for row in influence if "relative_difference" in row]
    assert len(compared) == len(whole)
    assert max(compared) <= 1e-4
    streamed = [row for row in paths if row["contender"] == "kgfast"]
    assert max(row["paths"] for row in streamed) >= 10**6
    assert all(row["bytes"] <= 128 << 20 for row in streamed)
