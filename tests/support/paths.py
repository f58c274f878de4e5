"""Paths of the files that tests read and run."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
BENCHMARKS = ROOT / "benchmarks"
DATA = ROOT.parent / "shared" / "data"  # WN18RR and FB15k-237, where they are at hand
