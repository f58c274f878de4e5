"""A short run of the attack (``make fuzz``): the same cases every time, in this process."""

import json

import pytest
import torch

from fuzz import driver
from fuzz.case import Case, Kind, Wrong, refused
from fuzz.kinds import KINDS
from fuzz.worker import run_case

SEED = 13
QUICK = [name for name, kind in KINDS.items() if kind.group not in ("processes", "runs")]
CASES = {
    **{"checkpoints: resumed": 3, "best facts": 6},
    **{"files: data folders": 60, "files: configs": 60},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", QUICK)
def test_cases(name):
    if reason := KINDS[name].lacks():
        pytest.skip(reason)
    for number in range(CASES.get(name, 12)):
        finding = run_case(name, SEED, number)
        assert finding is None, f"make fuzz CASE='{name}:{number}' SEED={SEED}: {finding}"


def test_a_case_is_drawn_from_its_number():
    first, again, other = Case("rank", 1, 2), Case("rank", 1, 2), Case("rank", 1, 3)
    assert first.normal(3).equal(again.normal(3))
    assert first.pick.random() == again.pick.random() != other.pick.random()


def test_what_should_be_refused():
    def raises(error):
        raise error

    assert refused(lambda: raises(ValueError("k must be 1")), errors=(ValueError,)) == "k must be 1"
    for call in (
        lambda: 3,
        lambda: raises(KeyError("k")),
        lambda: raises(ValueError("")),
        lambda: raises(ValueError("two\nlines")),
        lambda: raises(ValueError("x" * 5000)),
    ):
        with pytest.raises(Wrong):
            refused(call, errors=(ValueError,))


# Words of fuzz.worker on the way, without its imports.
WORKER = """
import json, os, signal, sys, time
events = os.fdopen(int(sys.argv[1]), "w", buffering=1)
say = lambda **event: print(json.dumps(event), file=events)
say(ready=True)
for line in sys.stdin:
    order = json.loads(line)
    for number in range(order["first"], order["end"]):
        say(begins=number)
        if number == 2: os.kill(os.getpid(), signal.SIGSEGV)
        if number == 3: time.sleep(60)
        if number == 4: sys.stderr.write("ERROR: AddressSanitizer: heap-use"); os._exit(1)
        wrong = {"what": "wrong", "message": "it is wrong", "drawn": "dim=3"}
        say(ends=number, finding=wrong if number == 1 else None)
    say(done=True)
"""


def test_what_goes_wrong_is_counted_and_does_not_end_the_run(tmp_path, monkeypatch):
    """A wrong result, a crash, a hang and a report of a sanitizer, between cases that pass."""
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    monkeypatch.setattr(driver, "WORKER", [str(program)])
    monkeypatch.setitem(driver.KINDS, "rank", Kind("rank", lambda case: None, "valid", 1, 30.0))
    said = []
    attack = driver.Attack(SEED, {"rank": 6}, said.append, workers=1, patience=0.05)
    attack.run()
    tally = attack.tallies["rank"]
    found = (tally.cases, tally.wrong, tally.crashes, tally.hangs, tally.reports)
    assert found == (6, 1, 1, 1, 1)
    assert [row["number"] for row in attack.findings] == [1, 2, 3, 4]
    assert json.dumps(attack.findings)
    assert f"make fuzz CASE='rank:1' SEED={SEED}" in "\n".join(said)
