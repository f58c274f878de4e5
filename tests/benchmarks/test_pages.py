"""benchmarks/pages.py: every page says what the results files say; these hold their promises."""

import json
import re

import pytest

from support.paths import BENCHMARKS, ROOT

RESULTS = BENCHMARKS / "results"
ABOUT = {
    "machine": {"device": "cpu", "name": "a machine", "threads": 3, "cores": 2, "isa": "isa"},
    "versions": {"kgfast": "1", "python": "3", "torch": "9.9", "numpy": "2"},
    "date": "2026-01-02T03:04:05",
    "command": "a command",
}


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    return path


@pytest.fixture
def write(tmp_path):
    """Write a results file of rows."""

    def write_rows(name, *rows):
        path = tmp_path / "results" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"rows": [row | ABOUT for row in rows]}))

    return write_rows


@pytest.fixture
def made(load, tmp_path):
    """Make the block of a page of the files that were written."""
    return lambda name: load("pages").PAGES[name].make(tmp_path / "results")


def test_the_pages_are_up_to_date(load):
    pages = load("pages").PAGES
    assert [name for name, page in pages.items() if page.update(RESULTS, check=True)] == []


def test_every_page_with_markers_is_in_the_table(load):
    pages = load("pages").PAGES
    paths = {ROOT / it.path for it in pages.values() if not it.is_whole}
    for files in ("*.md", "docs/**/*.md", "examples/*/*.md"):
        for path in ROOT.glob(files):
            assert ("<!-- results:begin -->" in path.read_text()) == (path in paths), path


def test_every_results_file_has_one_command_that_writes_it(load):
    text, makefile = (RESULTS / "README.md").read_text(), (ROOT / "Makefile").read_text()
    lines = re.findall(r"^\| (`.*`) \| (`.*) \|$", text, flags=re.MULTILINE)
    named = [name for names, _ in lines for name in re.findall(r"`([^`]+)`", names)]
    files = [path for name in named for path in RESULTS.glob(name) if path.is_file()]
    assert sorted(files) == sorted(
        it for it in RESULTS.rglob("*") if it.is_file() and it.name != "README.md"
    )
    for name, command in lines:
        for word in re.findall(r"(?:benchmarks|tools)/\w+\.py", command):
            assert (ROOT / word).is_file(), command
        for module in re.findall(r"-m ([\w.]+)", command):
            place = ROOT.joinpath(*module.split("."))
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), command
        for target in re.findall(r"make ([\w-]+)", command):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), command
            script = re.sub(r"^`cpu-(.*?)\.json`.*", r"\1", name).replace("-", "_")
            if target == "bench":
                parts = [it.words for it in load("bench").PARTS if script in it.words]
                assert parts, name
                has_data = all("{data}" in it or "{runs}" in it for it in parts)
                assert has_data == ("DATA=DIR" in command) or script == "peers_speed", name


def test_a_page_is_updated_and_checked(call, load, tmp_path, page):
    results = tmp_path / "results"
    results.mkdir()
    file = results / "cpu-eval-mem.json"
    measured = call("eval_mem.py", "--quick", "--dims", 8, "--json", file)
    assert measured.returncode == 0, measured.stderr
    arguments = ("pages.py", "readme", "--results", results, "--page", page)
    done = call(*arguments, "--check")
    assert done.returncode == 1
    assert "page.md is out of date: run python benchmarks/pages.py" in done.stderr
    assert call(*arguments).returncode == 0
    assert call(*arguments, "--check").returncode == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- results:begin -->\nThe graph is synthetic")
    assert text.endswith("<!-- results:end -->\nafter\n")
    queries = json.loads(file.read_text())["rows"][0]["kgfast"]["queries"]
    row = f"| filtered evaluation of {queries:,} queries, RotatE, dim 8: memory beyond the inputs |"
    assert row in text
    (graph,) = {row["synthetic_graph"] for row in json.loads(file.read_text())["rows"]}
    assert f"; synthetic graph {graph}" in measured.stdout
    assert f"Fingerprint of the synthetic graph: `{graph}`." in text


def test_a_file_that_is_missing_is_named(call, page, tmp_path):
    done = call("pages.py", "scale", "--results", tmp_path, "--page", page)
    assert done.returncode == 1
    assert "cpu-scale.json" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no page is called nothing; pages are cli, "),
        (["--page", "x.md"], "--page needs the name of one page"),
    ],
)
def test_bad_arguments_are_refused(call, arguments, message):
    done = call("pages.py", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_cells_are_templates_of_rows(load):
    tables = load("lib.tables")
    row = {"count": 1234, "seconds": {"median": 0.25}, "bytes": None}
    columns = (("what", "{count:,}"), (" ", "{seconds[median]:time}"), ("size:", "{bytes:.0f}"))
    assert list(tables.markdown(columns, [row])) == [
        "| what | | size |",
        "|---|---|---:|",
        "| 1,234 | 0.25 s |  |",
    ]
    assert tables.cell_of(row, "{lacking}") == ""


def test_a_work_of_losses_is_a_row(write, made):
    seconds = {"min": 0.5, "median": 1.0, "max": 1.5}
    bce = {"section": "bce", "score": "dot", "batch": 256, "entities": 9_000, "dim": 20}
    bce |= {"contender": "kgfast", "seconds": seconds, "extrapolated": False, "bytes": 3 << 20}
    race = bce | {"section": "indexed", "candidates": 64, "extrapolated": True, "times_kgfast": 4.5}
    missing = bce | {"seconds": None, "note": "too large", "contender": "eager"}
    missing.pop("bytes")
    half = {name: it / 2 for name, it in seconds.items()}
    faster = bce | {"contender": "compile", "seconds": half, "times_kgfast": 0.5}
    write("cpu-loss-mem.json", bce, race, missing, faster)
    ours = faster | {"contender": "kgfast_bf16"}  # products of bf16 numbers race each other
    theirs = faster | {"contender": "eager_bf16"}
    alone = [it | {"batch": 128} for it in (bce, theirs)]  # else they race float32
    steps = [it | {"section": "1-vs-all"} for it in (bce, missing, ours, theirs, *alone)]
    write("cpu-loss-1-vs-all.json", *steps)
    text = made("losses")
    assert text.startswith(
        "### Losses and scores, forward and backward: a machine, isa, 3 threads\n"
    )
    shape = "256 x 9,000 x 20"
    ours, peer, half = "1.0 s, 3.15 MB", "0.50 s, **0.50x**, 3.15 MB", "0.50 s, 0.50x, 3.15 MB"
    assert f"| bce, dot | {shape} | {ours} | too large | {peer} |  |" in text
    assert f"| 1-vs-all, dot | {shape} | {ours} | too large | {half} |  |" in text
    assert f"| 1-vs-all, dot | 128 x 9,000 x 20 | {ours} |  | {peer} |  |" in text
    shape = "256 x 64 (of 9,000) x 20"
    assert f"| indexed_scores, dot | {shape} | ~1.0 s, 3.15 MB |  |  |  |" in text


def peers_row(**changes):
    """Make a row of peers_speed.py: the peer takes three times as long as the index."""
    row = {"benchmark": "peers_speed", "table": "normal", "score": "dot", "entities": 5000}
    row |= {"dim": 7, "k": 10, "threads": 1, "batch": 1, "best_peer": "faiss Flat"}
    times = {"index": 1.0, "table": 2.0, "faiss Flat": 3.0, "bare loop": 1.5}
    row |= {"options": {"faiss Flat": "without BLAS"}, "times_index": times}
    return row | {"seconds": {name: {"median": it} for name, it in times.items()}} | changes


def test_a_row_says_which_peer_wins(write, made):
    lost = peers_row(batch=64, times_index={"faiss Flat": 0.5, "bare loop": 1.5})
    write("cpu-peers-speed.json", peers_row(), lost)
    text = made("prepared")
    assert "| faiss Flat, without BLAS | 3.0 s | **3.00x** | 1.50x |" in text
    assert "| 0.50x: faiss Flat wins | 1.50x |" in text


@pytest.fixture
def readme(write, made):
    """Return the lines of README's table; its first row is written."""
    memory = {"benchmark": "eval_mem", "dim": 7, "kgfast": {"bytes": 10_000, "queries": 12}}
    memory |= {"formula": {"batch": 128, "pykeen": 5_000_000}}
    write("cpu-eval-mem.json", memory | {"graph": {"entities": 9_000, "known_triples": 40}})
    return lambda: [line for line in made("readme").splitlines() if line.startswith("|")][2:]


def test_the_readme_has_rows_of_one_machine(write, readme, monkeypatch):
    assert len(readme()) == 1
    trained = [
        peers_row(table="trained", run="a", times_index={"faiss Flat": times})
        for times in (4, 0.951)
    ]
    write("cpu-peers-speed.json", peers_row(), peers_row(batch=64), peers_row(threads=2), *trained)
    (_, row) = readme()
    assert row.startswith("| the 10 best of 5,000 random rows of 7 numbers by `dot`, 1 query, ")
    told = "| **1.0 s** | 3.0 s: faiss Flat, without BLAS | 3.0x; trained: 0.95x to 4x |"
    assert row.endswith(told)
    monkeypatch.setitem(ABOUT, "machine", ABOUT["machine"] | {"isa": "another"})
    write("cpu-peers-speed.json", peers_row())
    assert len(readme()) == 1


def test_the_readme_compares_with_pykeen_at_its_best(write, readme):
    """Beside the batch of users who ran out of memory."""
    (row,) = readme()
    assert row.endswith(
        "| 5.00 MB: PyKEEN, 128 queries and all entities at once, by formula | 500.0x |"
    )
    whole = {"benchmark": "eval_speed", "section": "whole", "entities": 9_000, "dim": 7}
    whole |= {"queries": 12, "extrapolated": False, "batch": 6}
    timed = {"kgfast, planted, L2": 2.0, "matmul + compare, L2": 1.0}
    rows = [
        whole | {"contender": name, "seconds": {"median": seconds}}
        for name, seconds in timed.items()
    ]
    pykeen = {"contender": "PyKEEN's evaluator, L2", "seconds": {"median": 50}, "note": "guessed"}
    pykeen |= {"batch_size": 4, "slice_size": 1_000, "extrapolated": True}
    write("cpu-eval-speed.json", *rows, whole | pykeen)
    memory, time = readme()
    least = 8 * 4 * 1_000 * 7 + 3 * 4 * 40  # one complex tensor, and three masks of known triples
    assert (
        f"| {least / 1e3:.0f} kB: PyKEEN, 4 queries and slices of 1,000 entities (5.00 MB: "
        in memory
    )
    assert memory.endswith(f"| {least / 10_000:.1f}x |")
    assert "(PyKEEN, 4 queries and slices of 1,000: ~50 s, guessed) | 0.5x: the peer wins |" in time


def test_an_environment_names_the_versions_that_differ(made, tmp_path):
    """If its packages are those of the environment before."""
    locked = {"torch": "1", "numpy": "2", "x": "1"}
    versions = {"a": {"torch": "1"}, "b": locked, "c": locked | {"torch": "3", "x": "2"}}
    rows = [
        ABOUT | {"environment": name, "parts": {"tests": "passed"}, "versions": packages}
        for name, packages in versions.items()
    ]
    path = tmp_path / "results" / "versions.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"rows": rows}))
    ends = [line.rpartition(": ")[2] for line in made("versions").splitlines()[-3:]]
    assert ends == ["torch 1.", "torch 1, numpy 2.", "as b, but for torch 3, x 2."]


def test_pages_name_the_instruction_set_of_their_times():
    pages = [path for it in ("*.md", "docs/*/*.md", "examples/*/*.md") for path in ROOT.glob(it)]
    where = re.compile(r"^`.+?` on (.+), 20\d\d-\d\d-\d\d")
    found = [
        (page, it[1])
        for page in pages
        for it in map(where.match, page.read_text().splitlines())
        if it
    ]
    assert len(found) > 15
    assert [it for it in found if not re.search(", (avx512|avx2|neon|baseline)", it[1])] == []
