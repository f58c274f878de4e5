"""Plans of rankings: sizes and rates; a call reads its file as its plan says."""

import json
import math
import statistics
import subprocess
import sys

import pytest
import torch

import kgfast
from kgfast.extras.planning import Work, planned
from kgfast.extras.planning.devices import DEVICES, default_rates, rates_of
from kgfast.extras.planning.plan import FileCut
from kgfast.extras.planning.rates import Cost, Rates
from kgfast.extras.planning.work import bytes_per_second, count_of
from support.paths import BENCHMARKS

GB = 10**9
SLOW = Cost(1e-6, 1e-8, 2e-8, 1e-9)
RATES = Rates(
    "by hand",
    {"rank": {"rotate": {"float16": SLOW}}, "topk": {}},
    call_seconds=0.0,
    base_bytes=10**8,
    disk=1e9,
    read_seconds=2e-10,
    threads=2,
    memory=24 * GB,
)


def test_a_cost_is_a_line_in_rows_queries_and_calls():
    seconds = SLOW.seconds(rows=1000, features=10, queries=50, calls=3)
    assert seconds == pytest.approx(1000 * (3 * (1e-6 + 1e-7) + 50 * (2e-8 + 1e-8)))


def test_a_table_that_fits_is_loaded_and_then_swept():
    work = Work(1_000_000, 64, 100, "float16")
    plan = planned(work, RATES)
    assert not plan.streamed
    assert plan.table_bytes == plan.read_bytes == 256_000_000
    assert plan.load_seconds == pytest.approx(0.256)
    assert plan.seconds == pytest.approx(SLOW.seconds(1_000_000, 64, 200, 2))
    assert plan.binding == "compute"
    assert plan.total_seconds == plan.load_seconds + plan.seconds
    assert plan.memory_bytes > plan.table_bytes


def test_a_larger_one_is_read_beside_the_work():
    work = Work(91_230_610, 64, 1, "float16", sides=1)
    plan = planned(work, RATES)
    assert (plan.streamed, plan.passes, plan.load_seconds) == (True, 1, 0.0)
    assert plan.memory_bytes < GB
    compute = SLOW.seconds(work.rows, 64, 1, 1)
    assert plan.compute_seconds == pytest.approx(compute)
    # Reading takes cores from counting; the first block is waited for.
    reading = plan.read_bytes * 2e-10 / 2
    assert plan.seconds == pytest.approx(compute + reading + (32 << 20) / 1e9)
    slow_disk = planned(work, RATES, disk=1e8)
    assert slow_disk.binding == "disk"
    assert slow_disk.seconds == pytest.approx(plan.read_bytes / 1e8 + (32 << 20) / 1e8)


def test_less_memory_is_more_passes():
    work = Work(10_000_000, 64, 50_000, "float16")
    few, many = (planned(work, RATES, streamed=True, max_memory=it) for it in (4 * GB, 10**8))
    assert few.passes == 1 < many.passes
    assert many.read_bytes == many.passes * work.entities * work.row_bytes
    assert many.memory_bytes < few.memory_bytes


def test_a_call_reads_its_file_as_often_as_planned(tmp_path):
    """The rows of a block and the passes are those of rank() itself."""
    entity = torch.rand(3_000, 8).half()
    kgfast_file = tmp_path / "entity.bin"
    kgfast_file.write_bytes(entity.numpy().tobytes())
    table = kgfast.tables.open(kgfast_file, columns=8, dtype=torch.float16)
    read, own = [], table.read_into

    def read_into(start, out):
        read.append(len(out))
        own(start, out)

    table.read_into = read_into
    triples = torch.randint(3, (400, 3), generator=torch.Generator().manual_seed(0))
    limit = 120_000
    model = kgfast.RotatE(table, torch.rand(3, 4))
    kgfast.rank(model, triples, sides=("tail",), max_memory=limit)
    work = Work(3_000, 4, 400, "float16", sides=1)
    plan = planned(work, RATES, streamed=True, max_memory=limit)
    assert plan.passes > 1
    assert sum(read) / 3_000 == pytest.approx(plan.passes, abs=1)
    assert max(read) == pytest.approx(FileCut.of(work, limit).block_rows, rel=0.1)


def test_workers_share_rows_and_send_queries():
    alone, eight = (
        planned(Work(8_000_000, 64, 100, "float16", workers=it), RATES) for it in (1, 8)
    )
    assert alone.sent_bytes == 0
    assert eight.compute_seconds == pytest.approx(alone.compute_seconds / 8)
    assert eight.sent_bytes == 2 * 200 * (128 * 4 + 48) * 7 // 8
    larger = planned(Work(80_000_000, 64, 100, "float16", workers=8), RATES)
    assert larger.sent_bytes == eight.sent_bytes
    slow = planned(Work(8_000_000, 64, 100, "float16", workers=8), RATES, network=10.0)
    assert slow.binding == "network"


def test_what_does_not_fit():
    gpu = rates_of("h200")
    with pytest.raises(ValueError, match=r"186\.4 GB of rows do not fit .*--disk"):
        planned(Work(91_000_000, 512, 10, "float16"), gpu)
    assert planned(Work(91_000_000, 512, 10, "float16"), gpu, disk=1e9).streamed
    held = planned(Work(91_000_000, 512, 10, "float16"), gpu, streamed=False)
    assert held.binding == "memory"
    with pytest.raises(ValueError, match="by hand has no rate for rank by l1 of float16 tables"):
        planned(Work(10, 4, 10, "float16", "transe"), RATES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entities": 0}, "entities must be at least 1; got 0"),
        ({"top": 0}, "top must be at least 1"),
        ({"known": -1}, "known must not be negative"),
        ({"sides": 3}, "sides must be 1 or 2"),
        ({"dtype": "int8"}, "dtype must be of float16, bfloat16, float32, float64; got int8"),
        ({"model": "conve"}, "model must be of rotate"),
    ],
)
def test_sizes_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Work(**{"entities": 10, "dim": 4, "queries": 5} | change)


def test_texts():
    assert count_of("9.123061e7") == 91_230_610
    assert count_of("1_000") == 1000
    assert bytes_per_second("500 MB/s") == 5e8
    assert bytes_per_second("10Gbps") == 1.25e9
    for text in ("1.5", "many"):
        with pytest.raises(ValueError, match="number"):
            count_of(text)
    for text in ("2GB", "fast", "0GB/s"):
        with pytest.raises(ValueError, match="a rate is like 2GB/s"):
            bytes_per_second(text)


def test_devices_are_those_of_the_roofline():
    roofline = json.loads((BENCHMARKS / "results" / "static-roofline.json").read_text())
    for gpu in roofline["assumed"]:
        device = next(it for it in DEVICES.values() if it.name == gpu["name"])
        assert device.bytes_per_second == gpu["bytes_per_second"]
        found = {
            row["score"]: row["elements"] / row["sweep_seconds"]
            for row in roofline["predictions"]
            if row["gpu"] == device.name and row.get("test_set") == "WN18RR"
        }
        clocks = gpu["multiprocessors"] * gpu["ghz"] * 1e9
        for row in roofline["kernels"]:
            is_sweep = row["kernel"] == "sweep" and row["arch"] == f"sm_{gpu['arch']}"
            if is_sweep and row["workload"] in ("ranks, large: l1", "ranks, large: l2"):
                found[row["score"]] = clocks * 32 / max(row["clocks"].values())
        assert set(found) == set(device.elements)
        for score, rate in found.items():
            assert device.elements[score] == pytest.approx(rate, rel=5e-3)


def test_default_rates_are_those_of_the_results():
    rows = json.loads((BENCHMARKS / "results" / "cpu-scale.json").read_text())["rows"]
    rates, disks = default_rates(), []
    for row in rows:
        if row["section"] == "stream":
            disks.append(row["disk_bytes_per_s"])
        if row["section"] != "plan":
            continue
        measured = Rates.from_dict(row["rates"])
        assert (rates.base_bytes, rates.threads) == (measured.base_bytes, measured.threads)
        work = Work(
            row["entities"],
            row["dim"],
            row["queries"],
            row["dtype"],
            row["model"],
            1,
            0,
            row["top"],
        )
        seconds = [planned(work, it, disk=math.inf).seconds for it in (rates, measured)]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.1), row["work"]
    assert rates.disk == pytest.approx(statistics.median(disks), rel=0.01)


def test_a_plan_needs_no_torch():
    script = (
        "import sys; from kgfast.extras.planning import Work, planned\n"
        "from kgfast.extras.planning.devices import default_rates\n"
        "planned(Work(10, 4, 5), default_rates()); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
