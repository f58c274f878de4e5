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
@pytest.mark.parametrize(
    ("delimiter", "suffix"), [("\t", "tsv"), ("|", "txt"), (",", "csv"), (";", "tsv")]
)
def test_ids_are_those_of_dglke(tmp_path, order, delimiter, suffix):
    write_dglke(tmp_path, order, delimiter, suffix)
    check(tmp_path)
    check(tmp_path, columns=order)


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


def test_columns_that_ids_do_not_show_must_be_said(tmp_path):
    write_dglke(tmp_path)
    (tmp_path / "entities.tsv").write_text("4\tann\n0\tbob é\n1\tzoe\n3\tnew\n2\tyan\n")
    with pytest.raises(ValueError, match=r"show no order of the columns of train; pass columns="):
        load(tmp_path)
    dataset = load(tmp_path, columns="hrt")
    assert list(dataset.entities) == ["bob é", "zoe", "yan", "new", "ann"]
    assert list(dataset.train) == [(1, 0, 4), (4, 1, 0), (1, 0, 4)]


def test_a_config_can_say_them(tmp_path):
    (tmp_path / "people").mkdir()
    write_dglke(tmp_path / "people", "trh")
    path = tmp_path / "a.yaml"
    values = {"dataset": {"name": "people", "root": str(tmp_path)}, "model": {"name": "rotate"}}
    path.write_text(yaml.safe_dump(values | {"optim": {"lr": 0.1}, "train": {"steps": 1}}))
    triples = {}
    for columns in ("null", "trh", "hrt"):
        config = Config.from_yaml(path, ["model.base_dim=4", f"dataset.columns={columns}"])
        triples[columns] = load_dataset(config).train.hrt
    assert torch.equal(triples["null"], triples["trh"])
    assert torch.equal(triples["hrt"], triples["trh"][:, [2, 1, 0]])


def test_other_layouts_have_no_columns(tmp_path):
    (tmp_path / "train.txt").write_text("ann\tknows\tbob\n")
    with pytest.raises(ValueError, match="not a raw_udd folder"):
        load(tmp_path, columns="hrt")
    with pytest.raises(ValueError, match=r"columns must be one of hrt, .*, got 'hhh'"):
        load(tmp_path, columns="hhh")


@pytest.mark.parametrize(
    ("name", "text", "line", "problem"),
    [
        ("train.tsv", "zoe\tlikes\tann\nzoe\tlikes\n", 2, r"3 fields between '\\t', found 2"),
        ("train.tsv", "zoe\tlikes\tann\n\nzoe\tlikes\tan\n", 3, "unknown name 'an'"),
        ("valid.tsv", "zoe\tlike\tann\n", 1, "did you mean 'likes'"),
        ("test.tsv", "zoe\t\tann\n", 1, "empty name"),
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
