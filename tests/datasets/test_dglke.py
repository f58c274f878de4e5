"""Folders that DGL-KE numbered: its ids, in whatever delimiter and order of columns."""

import gzip
from pathlib import Path

import pytest
import torch
import yaml

from kgfast.datasets import load
from kgfast.training import Config
from kgfast.training.build import load_dataset
from support.data_folders import ORDERS, write_dglke


def check(root, columns=None):
    dataset = load(root, columns=columns)
    assert list(dataset.entities) == ["zoe", "ann", "bob é", "new", "yan"]
    assert list(dataset.relations) == ["likes", "knows"]
    assert list(dataset.train) == [(0, 0, 1), (1, 1, 2), (0, 0, 1)]
    assert list(dataset.valid) == [(2, 0, 0)]
    assert list(dataset.test) == [(1, 0, 3), (4, 1, 1)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delimiter", ["\t", "|", ",", ";"])
def test_ids_are_those_of_dglke(tmp_path, order, delimiter):
    check(write_dglke(tmp_path, order, delimiter))


@pytest.mark.parametrize("suffix", ["tsv", "txt", "csv"])
def test_suffixes(tmp_path, suffix):
    check(write_dglke(tmp_path, suffix=suffix))


def test_gzip_crlf_and_spaces_at_the_ends(tmp_path):
    """DGL-KE strips lines, and opens files with universal line ends."""
    write_dglke(tmp_path)
    for path in list(tmp_path.iterdir()):
        text = path.read_text()
        if not path.name.startswith(("entities", "relations")):
            text = "".join(f"  {line} \r\n" for line in text.splitlines())
        Path(f"{path}.gz").write_bytes(gzip.compress(text.encode()))
        path.unlink()
    check(tmp_path)


def test_the_importance_of_edges_is_said_not_to_be_used(tmp_path):
    with pytest.warns(UserWarning, match=r": the importance of edges is not used"):
        check(write_dglke(tmp_path, "htr", ",", "csv", more=",2.5"))


@pytest.mark.parametrize("order", ORDERS)
def test_columns_can_be_said(tmp_path, order):
    check(write_dglke(tmp_path, order), columns=order)


def test_ids_given_by_hand_are_kept(tmp_path):
    """In no order of mention: the columns are h r t, as in every other layout."""
    write_dglke(tmp_path)
    (tmp_path / "entities.tsv").write_text("4\tann\n0\tbob é\n1\tzoe\n3\tnew\n2\tyan\n")
    dataset = load(tmp_path)
    assert list(dataset.entities) == ["bob é", "zoe", "yan", "new", "ann"]
    assert list(dataset.train) == [(1, 0, 4), (4, 1, 0), (1, 0, 4)]


def test_columns_that_nothing_tells_apart_must_be_said(tmp_path):
    write_dglke(tmp_path, "htr")
    (tmp_path / "entities.tsv").write_text("4\tann\n0\tbob é\n1\tzoe\n3\tnew\n2\tyan\n")
    with pytest.raises(ValueError, match=r"train\.tsv: the columns may be htr or thr.*columns="):
        load(tmp_path)
    assert list(load(tmp_path, columns="htr").train)[1] == (4, 1, 0)


def test_a_config_can_say_them(tmp_path):
    (tmp_path / "people").mkdir()
    write_dglke(tmp_path / "people", "trh")
    values = {
        "dataset": {"name": "people", "root": str(tmp_path), "columns": "hrt"},
        "model": {"name": "rotate", "base_dim": 4},
        "optim": {"lr": 0.1},
        "train": {"steps": 1},
    }
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(values))
    read = [
        load_dataset(Config.from_yaml(path, [f"dataset.columns={it}"])) for it in ("null", "trh")
    ]
    assert torch.equal(read[0].train.hrt, read[1].train.hrt)
    swapped = load_dataset(Config.from_yaml(path)).train.hrt
    assert torch.equal(swapped, read[0].train.hrt[:, [2, 1, 0]])


def test_other_layouts_have_no_columns(tmp_path):
    (tmp_path / "train.txt").write_text("ann\tknows\tbob\n")
    with pytest.raises(ValueError, match="not a raw_udd folder"):
        load(tmp_path, columns="hrt")
    with pytest.raises(ValueError, match=r"columns must be one of hrt, .*, got 'hhh'"):
        load(tmp_path, columns="hhh")


@pytest.mark.parametrize(
    ("name", "text", "line", "problem"),
    [
        (
            "train.tsv",
            "zoe\tlikes\tann\nzoe\tlikes\n",
            2,
            r"expected 3 fields between '\\t', found 2",
        ),
        ("train.tsv", "zoe\tlikes\tann\n\nzoe\tlikes\tan\n", 3, "unknown name 'an'"),
        ("valid.tsv", "zoe\tlike\tann\n", 1, "did you mean 'likes'"),
        ("test.tsv", "zoe\t\tann\n", 1, "empty name"),
        ("train.tsv", "zoe\tlikes\tann\tfar\n", 1, "expected the edge's importance"),
        ("entities.tsv", "id\tname\n0\tann\n", 1, "as DGL-KE writes entities.tsv"),
        ("entities.tsv", "", 1, "as DGL-KE writes entities.tsv"),
        ("entities.tsv", "0\tann\n1,bob\n", 2, "expected an id and a name"),
        ("relations.tsv", "0\tlikes\nx\tknows\n", 2, "'x' is not an integer"),
    ],
)
def test_malformed_lines(tmp_path, name, text, line, problem):
    (write_dglke(tmp_path) / name).write_text(text)
    with pytest.raises(ValueError, match=problem) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}:{line}: ")


def test_no_relations(tmp_path):
    (write_dglke(tmp_path) / "relations.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"looked for relations\.tsv"):
        load(tmp_path)
