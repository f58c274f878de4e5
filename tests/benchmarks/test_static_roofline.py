"""Predictions: units counted in machine code, and the files that hold them."""

import json
import os

import pytest

from support.paths import BENCHMARKS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)

SASS = [
    (0, "LDG.E.128 R4, desc[UR4][R2.64]"),
    (16, "@!P0 LDG.E.64.CONSTANT R8, desc[UR4][R2.64+0x10]"),
    (32, "LDSM.16.M88.4 R12, [R20]"),
    (48, "FFMA R1, R2, R3, R1"),
    (64, "MUFU.SQRT R5, R6"),
    (80, "HMMA.16816.F32.BF16 R4, R8, R10, R4"),
    (96, "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"),
    (112, "HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24, gsb0"),
    (128, "STG.E.128 desc[UR4][R2.64], R4"),
    (144, "@P0 BRA 0x0"),
]


def test_a_loop_is_counted_unit_by_unit(load) -> None:
    import aot

    roofline = load("lib.roofline")
    loop = aot.Loop.of(SASS, 0, 64)
    assert (loop.words, loop.stored, loop.total()) == (4 + 2 + 4, 0, 5)
    clocks = roofline.clocks_of(loop, 90)
    assert clocks["issue"] == 1.25
    assert clocks["special functions"] == 2
    assert clocks["float32"] == 0.25
    assert roofline.limit_of(clocks) == "loads"
    whole = aot.Loop.of(SASS, 0, 144)
    assert whole.stored == 4
    assert whole.products == {"BF16": 2048 + 64 * 128 * 4, "TF32": 64 * 128 * 2}
    clocks = roofline.clocks_of(whole, 90, streams=True)
    assert clocks["tensor cores"] == (2048 + 64 * 128 * 4 + 2 * 64 * 128 * 2) / 2048
    assert roofline.limit_of(clocks) == "memory"


@pytest.mark.slow
def test_products_are_predicted_to_be_fast(load) -> None:
    times = load("lib.roofline_times")
    h100 = next(gpu for gpu in times.GPUS if gpu.name == "H100 SXM")
    row = times.filtered_ranks(h100, times.TEST_SETS[-1])
    assert row["work"] == "filtered ranks, dot, WN18RR d=200"
    assert row["floor_seconds"] < row["sweep_seconds"] < row["total_seconds"] <= 1e-3
    assert times.bce_of_products(h100)["total_seconds"] <= 0.35e-3
    assert times.one_query(h100)["bytes_over_table"] <= 1.05


def test_every_kernel_of_a_loss_has_a_row(load, monkeypatch) -> None:
    import aot

    roofline = load("static_roofline")
    monkeypatch.setattr(aot, "compile_for", lambda launch, arch: None)
    monkeypatch.setattr(
        roofline, "kernel_row", lambda launch, code, arch, workload: (launch.name, workload)
    )
    workloads = ["ranks, single: rotate", "all pairs: rotate", "adversarial: any"]
    workloads += ["nssa of a pool: rotate"]
    workloads += [f"{name}: {score}" for name in roofline.LOSSES for score in ("rotate", "dot")]
    kernels = list(roofline.kernel_rows(90, workloads))
    assert ("sweep_in_place", "ranks, single: rotate") in kernels
    assert kernels.count(("distance_losses", "bce: rotate")) == 1
    assert kernels.count(("distance_losses", "cross entropy: rotate")) == 2  # scored again
    for name in roofline.LOSSES:
        assert {("finish", f"{name}: rotate"), ("pull", f"{name}: rotate")} <= set(kernels)
        assert {("product_losses", f"{name}: dot"), ("multiply_slopes", f"{name}: dot")} <= set(
            kernels
        )
    assert ("adversarial_rows", "adversarial: any") in kernels
    assert ("adversarial_slopes", "adversarial: any") in kernels
    pool = {name for name, workload in kernels if workload == "nssa of a pool: rotate"}
    assert {"distance_negatives", "finish_negatives", "negative_slopes"} <= pool


def test_the_file_names_the_unit_that_limits_every_kernel() -> None:
    found = json.loads((BENCHMARKS / "results" / "static-roofline.json").read_text())
    assert found["what"].startswith("predictions")
    assert all(row["limit"] and row["stack"] == 0 for row in found["kernels"])
    large = {
        row["score"]: row
        for row in found["kernels"]
        if row["arch"] == "sm_90" and row["workload"].startswith("ranks, large")
        if row["kernel"].startswith("sweep")
    }
    assert large["rotate"]["limit"] == "special functions"
    assert large["dot"]["limit"] == "tensor cores"
    for score in ("l1", "l2"):
        assert large[score]["limit"] == "issue"
    names = {row["gpu"] for row in found["predictions"]}
    assert names == {gpu["name"] for gpu in found["assumed"]}
    assert all(row["is_prediction"] for row in found["predictions"])
