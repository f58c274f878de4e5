"""The README is short, its code runs, and its links lead to the page that a reader needs."""

import json
import re
from functools import partial

import pytest
import torch

import kgfast
from support.paths import ROOT
from support.snippets import run_page

README = (ROOT / "README.md").read_text()
TRAIN = (ROOT / "docs" / "how-to" / "train.md").read_text()


def test_it_is_short_and_says_first_how_to_rank_measure_and_test():
    lines = README.splitlines()
    assert len(lines) <= 90
    first = "\n".join(lines[:40])
    for name in ("kgfast.rank()", "python benchmarks/eval_mem.py", "pytest tests/kernels"):
        assert name in first


def clicks(path, words=""):
    """List the files to which text links of a page lead, those in lines that hold the words.

    A picture is no such link: its own links, if it has any, work on a built site alone.
    """
    text = "\n".join(line for line in path.read_text().splitlines() if words in line)
    links = re.findall(r"(?<!!)\[[^\[\]]+\]\(([^)#\s]+)", text)
    return [(path.parent / link).resolve() for link in links if "://" not in link]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("19.99 GiB", "how-to/med_rscf"),  # the reports of users, in their order
        ("fragmented", "explanation/reports"),
        ("dense labels", "reference/losses"),
        ("TracIn", "how-to/influence"),
        ("7.45 GiB", "how-to/heads"),
        ("GT-SSL", "how-to/paths"),
        ("PyKEEN", "tutorials/pykeen"),
    ],
)
def test_a_user_finds_the_page_in_two_clicks(words, page):
    """The words are the user's: the first click is in a line of README that holds them."""
    goal = ROOT / "docs" / f"{page}.md"
    first = clicks(ROOT / "README.md", words)
    assert goal in first or any(goal in clicks(page, words) for page in first), first


def test_every_page_is_two_clicks_from_the_readme():
    first = clicks(ROOT / "README.md")
    pages = [page for page in first if page.suffix == ".md"]
    reached = {*first, *(link for page in pages for link in clicks(page))}
    assert set((ROOT / "docs").rglob("*.md")) - reached == set()


def test_the_readme_says_what_a_gpu_has_shown():
    section = README.split("## On a GPU\n")[1].split("\n## ")[0].lower()
    cases = (ROOT / "benchmarks" / "results" / "h200-cases.jsonl").read_text().splitlines()
    checks = [row for row in map(json.loads, cases) if row["step"] == "checks"]
    compared = [row for row in checks if "relative_error" not in row]
    equal = sum("error" not in row for row in compared)
    assert f"{equal} of {len(compared)} comparisons" in section
    (within,) = re.findall(r"within ([\d.]+e-\d) of float64", section)
    assert max(row.get("relative_error", 0.0) for row in checks) <= float(within)
    assert "never timed" in section


def test_the_code_runs(monkeypatch):
    """On a smaller graph: all facts of a relation are as many as pairs of entities.

    The first tutorial runs nearly the same lines on the graph itself.
    """
    small = partial(kgfast.datasets.synthetic, 4_000, 11, 9_000, 300, 300)
    monkeypatch.setattr(kgfast.datasets, "synthetic", small)
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict = {}
    exec(block, names)
    assert 0.3 < names["ranks"].mrr < 0.8


def test_your_own_model_scores_what_it_says():
    names = run_page(ROOT / "docs" / "how-to" / "any_scorer.md")
    entity, relation = torch.randn(6, 3).double(), torch.randn(2, 3, 3).double()
    model = names["Rescal"](entity, relation)
    for side in ("tail", "head"):
        query = model.queries(torch.tensor([4]), torch.tensor([1]), side)
        scores = (query @ entity.T)[0]
        for n in range(6):
            h, t = (4, n) if side == "tail" else (n, 4)
            expected = entity[h] @ relation[1] @ entity[t]
            assert scores[n].item() == pytest.approx(expected.item(), rel=1e-12)


def test_every_results_file_says_where_it_comes_from():
    paths = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))
    assert len(paths) > 40
    for path in paths:
        found = json.loads(path.read_text())
        for row in found.get("rows") or [found]:
            assert {"machine", "versions", "command"} <= row.keys(), path
            assert row["versions"]["kgfast"], path


def test_the_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text()
    found = re.findall(r"`make (\w+)`", README)
    assert set(found) >= {"demo", "test"}
    for target in found:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
