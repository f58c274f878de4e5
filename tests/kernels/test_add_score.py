"""The steps of CONTRIBUTING.md add a score: a copy of the tree in which they are followed works."""

import os
import shutil

import pytest

from kgfast.kernels import cpu
from support.copies import python, steps, write
from support.paths import ROOT

COPIED = ("benchmarks", "configs", "kernels", "kgfast", "tests", "tools")
RUN = (
    "tests/kernels/test_scores.py",
    "tests/kernels/reference/test_rank.py",
    "tests/kernels/reference/test_losses.py",
    "tests/kernels/test_bounds.py",
    "tests/kernels/test_gradients.py",
    "tests/kernels/test_ranks.py",
    "tests/kernels/test_topk.py",
    "tests/ops/test_totals.py",
)

# File by file what stands in it and what is written after that: - sum_d (q_d - c_d)^4.
EDITS = {
    "kernels/scores.py": {
        "    MODULUS = 3, 2, False  # |q - c|, complex\n": """\
    FOURTH = 4, 1, False
""",
        """\
        Score("l1", 1, "- sum_d abs(q_d - c_d)", Term.MAGNITUDE, term_ulps=2),
""": """\
        Score("fourth", 7, "- sum_d (q_d - c_d)^4", Term.FOURTH, term_ulps=4),
""",
    },
    "kernels/reference/canonical.py": {
        "        return x[0].abs()\n": """\
    if score.term is Term.FOURTH:
        square = x[0] * x[0]
        return square * square
""",
        "        return [x[0].sign()]\n": """\
    if score.term is Term.FOURTH:
        return [4 * x[0] * x[0] * x[0]]
""",
    },
    "kernels/cpu/csrc/scores/scores.h": {
        "  static double score(double sum) { return sum; }\n};\n\n": """\
struct Fourth : RealRows {
  static constexpr ScoreId id{7};
  static constexpr Terms terms = Terms::others;
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]), square = Simd::mul(x, x);
    return Simd::fma(square, square, sum);
  }
  static V finish(V sum) { return sum; }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {
    const V x = Simd::sub(q[0], c[0]);
    const V w = Simd::mul(Simd::mul(Simd::set1(4.0f), g), Simd::mul(x, Simd::mul(x, x)));
    dq[0] = Simd::sub(dq[0], w);
    dc[0] = Simd::add(dc[0], w);
  }
  static double term(const double* q, const double* c) {
    const double x = q[0] - c[0], square = x * x;
    return square * square;
  }
  static double score(double sum) { return -sum; }
};

""",
        "with_one_of<Dot, ": "Fourth, ",
    },
    "kernels/triton/device/terms.py": {
        "MODULUS: tl.constexpr = tl.constexpr(Term.MODULUS.number)\n": """\
FOURTH: tl.constexpr = tl.constexpr(Term.FOURTH.number)
""",
        "WRITTEN = ": "Term.FOURTH, ",
        "            term = tl.abs(x)\n": """\
        elif FORM.term == FOURTH:
            term = x * x * (x * x)
""",
        """\
        u = tl.where(x > 0, weight, tl.where(x < 0, -weight, 0.0))
        v = u
""": """\
    elif FORM.term == FOURTH:
        u = 4 * weight * (x * x * x)
        v = u
""",
    },
    "tests/support/oracles.py": {
        '    "l1": (1, 1, False),\n': """\
    "fourth": (1, 1, False),
""",
        "        return q[0] * c[0]\n": """\
    if score == "fourth":
        square = (q[0] - c[0]) * (q[0] - c[0])
        return square * square
""",
        "        result = x.sum((-1, -2))\n": """\
    elif score == "fourth":
        result = -(x**4).sum((-1, -2))
""",
    },
}


def test_the_steps_are_those_followed_here():
    assert steps("Add a score") == list(EDITS)
    assert len(EDITS) <= 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_a_score_that_was_added_is_served_by_every_backend(tmp_path):
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "results")
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in steps("Add a score"):
        write(tmp_path / name, EDITS[name])
    env = dict(os.environ)
    if shutil.which("ccache") and "CC" not in env:
        env |= {"CC": "ccache gcc", "CXX": "ccache g++", "CCACHE_NOHASHDIR": "1"}
    python(tmp_path, env, "setup.py", "--quiet", "build", "--build-lib", "lib")
    env |= {"PYTHONPATH": str(tmp_path / "lib"), "TRITON_INTERPRET": "1"}
    command = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]  # -P: not the copy's sources
    # Items without a score's name draw scores.
    drawn = "(test_scores or test_bounds) and not slow"
    python(tmp_path, env, *command, "-k", f"fourth or {drawn}", *RUN)
