"""The example of entity alignment: ranks of a dense matrix of float64 scores."""

import numpy as np
import pytest
import torch

from support.examples import load

N, M, DIM, K = 90, 110, 12, 7


@pytest.fixture
def align():
    return load("alignment.align")


def tables(align):
    source, target = (align.unit_rows(it) for it in align.synthetic(M, DIM))
    source[8], target[8], target[50] = source[3], target[3], target[3]  # ties
    return source[:N], target


def dense_ranks(scores):
    """Ranks of the diagonal, ties by their mean."""
    own = np.diagonal(scores)[:, None]
    return 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2


def test_ranks_are_those_of_a_dense_matrix(align, backend):
    source, target = tables(align)
    # In the order of features, as canonical scores are: equal rows have equal scores.
    cosines = np.zeros((N, M))
    for left, right in zip(source.double().numpy().T, target.double().numpy().T, strict=True):
        cosines += left[:, None] * right
    found = align.align(source, target, K)
    assert found.cosine.tolist() == dense_ranks(cosines).tolist()
    means = np.sort(cosines.astype(np.float32).astype(np.float64), 0)[::-1][:K]
    bias = align.mean_similarity(target, source, K)
    np.testing.assert_allclose(bias, means.mean(0), rtol=1e-12)
    # CSLS as in its paper: r of the source is the same for all targets, and moves no rank.
    nearest = np.sort(cosines, 1)[:, ::-1][:, :K].mean(1)
    csls = 2 * cosines - nearest[:, None] - bias.numpy()
    np.testing.assert_array_equal(found.csls, dense_ranks(csls.round(12)))
    assert (found.csls != found.cosine).any()


def test_csls_finds_more_where_there_are_hubs(align):
    source, target = map(align.unit_rows, align.synthetic(600, 32))
    found = align.align(source, target)
    lines = list(align.report(found))
    assert [it.split()[0] for it in lines] == ["hits@1", "cosine", "csls"]
    assert (1 / found.csls).mean() > 1.05 * (1 / found.cosine).mean()
    assert lines[2].split()[3] == f"{float((1 / found.csls).mean()):.4f}"


def test_tables_in_files(align, tmp_path, monkeypatch, capsys):
    source, target = align.synthetic(40, 8)
    for name, table in (("a", source), ("b", target)):
        np.save(tmp_path / f"{name}.npy", table.numpy())
    monkeypatch.chdir(tmp_path)
    for words in (["--source", "a.npy", "--target", "b.npy"], ["--entities", "40", "--dim", "8"]):
        monkeypatch.setattr("sys.argv", ["align.py", *words])
        align.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("40 of 40 rows, d = 8: ")
    assert said[1:4] == said[5:8]


def test_tables_that_do_not_fit_are_named(align):
    source, target = tables(align)
    with pytest.raises(ValueError, match=r"target must have at least 90 rows, .*; got 80"):
        align.align(source, target[:80])
    with pytest.raises(ValueError, match="k must be at most the number of candidates, 90; got 91"):
        align.align(source, target, 91)
    with pytest.raises(ValueError, match="row 4 is zero: a zero row has no direction"):
        align.unit_rows(torch.cat([source[:4], torch.zeros(1, DIM)]))
