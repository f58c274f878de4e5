"""Rates: measured, kept and read again."""

import json

import pytest

from kgfast.extras.planning import Work, calibration, planned
from kgfast.extras.planning.rates import Rates, load_rates, rates_file, save_rates

SMALL = {"rounds": 1, "block_bytes": 1 << 14, "file_bytes": 1 << 20}


COST = {"row": 1e-9, "row_dim": 0.0, "pair": 1e-9, "pair_dim": -1e-12}
RATES = Rates("here", {}, 1e-5, 10**8, None, 1e-9, 2, 10**9).as_dict()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KGFAST_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rates.json"


def test_measured_rates_are_kept(cache, tmp_path):
    cases = [("rank", "rotate", "float16"), ("topk", "dot", "float32")]
    rates = calibration.calibrate(tmp_path, cases=cases, **SMALL)
    assert list(tmp_path.iterdir()) == []  # the file is gone
    assert rates.disk > 0
    assert rates.read_seconds >= 0
    assert "measured on" in rates.source
    assert save_rates(rates) == cache == rates_file()
    assert load_rates() == rates
    for work in (Work(10**6, 64, 9, "float16"), Work(10**6, 64, 9, model="distmult", top=3)):
        assert planned(work, load_rates()).seconds > 0


def test_all_cases_are_measured_unless_some_are_named(monkeypatch):
    seen = []
    monkeypatch.setattr(calibration, "_cost", lambda case, *_: seen.append(case))
    calibration.calibrate(**SMALL)
    assert len(set(seen)) == len(seen) == 2 * 4 * 4


def test_lines_are_never_negative():
    assert calibration._line({64: 2.0, 256: 5.0}) == pytest.approx((1.0, 3 / 192))
    assert calibration._line({64: 1.0, 256: 8.0}) == (0.0, 8 / 256)
    assert calibration._line({64: 3.0, 256: 2.0}) == (2.0, 0.0)


def test_rates_that_are_missing_or_another_version_say_what_to_do(cache):
    with pytest.raises(FileNotFoundError, match=r"rates.json is not there: .*--calibrate"):
        load_rates()
    cache.parent.mkdir()
    for text in (
        *("{}", '{"format": 0}', "[1]", "no json", json.dumps({"format": 1, "costs": {}})),
        *("[" * 100_000, b"\xff", {"threads": "x"}, {"disk": [1]}, {"memory": float("nan")}),
        {"costs": {"rank": {"dot": {"float32": COST | {"row": None}}}}},
    ):
        text = json.dumps(RATES | text) if isinstance(text, dict) else text
        cache.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ValueError, match=r"rates.json: .*kgfast plan --calibrate"):
            load_rates()
    cache.write_text(json.dumps(RATES | {"costs": {"rank": {"dot": {"float32": COST}}}}))
    assert load_rates().source == "here"


def test_the_cache_without_a_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("KGFAST_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert rates_file() == tmp_path / "kgfast" / "rates.json"
    assert Rates.__dataclass_fields__.keys() >= {"costs", "disk", "source"}
