"""med_speed.py and the page of its results, in their smoke-test sizes."""

import pytest


@pytest.mark.slow
def test_steps_are_timed_and_put_into_the_page(measured, call, tmp_path):
    page = tmp_path / "page.md"
    rows = measured("med_speed.py", "--rounds", 1, file="cpu-med-speed.json")
    assert [(row["model"], row["negatives"], row["way"]) for row in rows] == [
        (model, negatives, way)
        for model, negatives in (
            ("rotate", "shared"),
            ("rotate", "per_row"),
            ("rotate + rscf", "per_row"),
        )
        for way in ("widest alone", "nested", "a pass each")
    ]
    for row in rows:
        assert row["seconds"]["median"] > 0
        assert (row["times_widest"] == 1) == (row["way"] == "widest alone")
    measured("eval_mem.py", "--sections", "crops", "--ways", file="cpu-eval-mem.json")
    page.write_text("Text.\n\n<!-- results:begin -->\n<!-- results:end -->\n")
    arguments = ("--results", tmp_path, "--page", page)
    assert call("pages.py", "med_rscf", *arguments).returncode == 0
    assert call("pages.py", "med_rscf", *arguments, "--check").returncode == 0
    assert "| RotatE | 64 x 32, shared | nested |" in page.read_text()
    assert "| RotatE + RSCF | 64 x 8, per row | nested |" in page.read_text()
