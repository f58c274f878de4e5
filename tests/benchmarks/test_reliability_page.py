"""docs/reliability.md says what the files of the attack say."""

from support.paths import BENCHMARKS


def result(cases, wrong=0):
    facts = (
        {"cores": 2, "name": "a machine"},
        dict.fromkeys(("kgfast", "python", "torch", "numpy"), "1"),
    )
    counts = {"group": "valid", "cases": cases, "crashes": 0, "hangs": 0, "reports": 0}
    return {
        "command": "python -m fuzz --cases 7",
        "seed": 7,
        "seconds": 120.0,
        "date": "2026-01-02T03:04:05+00:00",
        "machine": facts[0],
        "versions": facts[1],
        "cases": cases,
        "kinds": {"rank": counts | {"wrong": wrong}},
    }


def test_a_column_for_every_file(load):
    table = load("reliability_page").markdown(
        {"fuzz": result(1234, wrong=2), "fuzz-sanitize-thread": result(50)}
    )
    assert "| cases | no sanitizer | ThreadSanitizer |" in table
    assert "| valid calls, against the oracles | 1,234 | 50 |" in table
    assert "| **wrong** | **2** | **0** |" in table
    assert "`python -m fuzz --cases 7`, seed 7, 2 min on a machine (2 cores), 2026-01-02" in table


def test_the_page_is_up_to_date(load):
    page = load("reliability_page")
    assert page.markdown(page.read(BENCHMARKS / "results")) in page.PAGE.read_text()
