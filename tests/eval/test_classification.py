"""Triple classification against plain arithmetic, and what it refuses."""

import numpy as np
import pytest
import torch

import kgfast
from kgfast import RotatE, TransE, Vocabulary, classify

MODEL = TransE(torch.tensor([[0.0], [1.0], [3.0], [7.0]]), torch.tensor([[1.0], [2.0], [0.5]]))
TRUE, FALSE = [(0, 0, 1), (1, 1, 2)], [(0, 0, 2), (1, 1, 3)]


def expected_threshold(scores, is_true):
    """Try every score, the lowest first."""
    right = {it: np.mean((scores >= it) == is_true) for it in sorted(scores)}
    return max(right, key=right.get)


@pytest.mark.parametrize("ties", [False, True])
def test_every_threshold_is_tried(ties):
    generator = torch.Generator().manual_seed(3)
    model = RotatE.init(30, 5, 4, seed=0)
    if ties:  # scores of few values
        model = TransE(torch.randint(3, (30, 2), generator=generator).float(), torch.zeros(5, 2))

    def drawn(count, relations):
        columns = [torch.randint(it, (count,), generator=generator) for it in (30, relations, 30)]
        return torch.stack(columns, 1)

    valid = drawn(80, 4), drawn(60, 4)  # none of relation 4
    test = drawn(50, 5), drawn(70, 5)
    found = classify(model, valid=valid, test=test)

    def scored(pair):
        hrt = torch.cat(pair)
        one = [kgfast.topk(model, heads=h, relations=r, k=30) for h, r, _ in hrt.tolist()]
        scores = [float(it.scores[0, it.ids[0] == t]) for it, t in zip(one, hrt[:, 2], strict=True)]
        return hrt[:, 1].numpy(), np.array(scores), np.arange(len(hrt)) < len(pair[0])

    relations, scores, is_true = scored(valid)
    shared = expected_threshold(scores, is_true)
    thresholds = [
        expected_threshold(scores[relations == it], is_true[relations == it]) for it in range(4)
    ]
    assert found.shared_threshold == shared
    assert found.thresholds[:4].tolist() == thresholds
    assert found.thresholds[4].isnan()
    relations, scores, is_true = scored(test)
    predicted = scores >= np.array([*thresholds, shared])[relations]
    assert found.predicted.tolist() == predicted.tolist()
    assert found.test.accuracy == pytest.approx(np.mean(predicted == is_true))
    precision, recall = np.mean(is_true[predicted]), np.mean(predicted[is_true])
    assert found.test.precision == pytest.approx(precision)
    assert found.test.recall == pytest.approx(recall)
    assert found.test.f1 == pytest.approx(2 * precision * recall / (precision + recall))
    own = relations == 2
    assert found.by_relation()[2].accuracy == pytest.approx(np.mean((predicted == is_true)[own]))


def test_names_and_what_is_printed():
    names = Vocabulary(list("abcd")), Vocabulary(["r", "s", "t"])
    rows = [("a", "r", "b"), ("b", "s", "c")], [("a", "r", "c"), ("b", "s", "d")]
    found = classify(MODEL, valid=rows, test=rows, vocabulary=names)
    assert found.test.accuracy == 1.0
    assert list(found.by_relation()) == ["r", "s"]
    assert repr(found).splitlines() == [
        "Classification by a threshold for each of 2 relations",
        "       triples  accuracy  precision  recall      f1",
        "valid        4    1.0000     1.0000  1.0000  1.0000",
        "test         4    1.0000     1.0000  1.0000  1.0000",
    ]


@pytest.mark.parametrize(
    ("valid", "error", "message"),
    [
        (TRUE, ValueError, r"valid, true triples: triples must have shape \[T, 3\]"),
        (None, TypeError, "valid must be a pair of true triples and false triples; got NoneType"),
        ((TRUE, []), ValueError, "valid: there are no false triples to choose thresholds on"),
        ((TRUE, [(0, 0, 4)]), ValueError, r"valid, false triples: triples\[0\].*0\.\.3"),
        (([(0, 3, 1)], FALSE), ValueError, r"valid, true triples: triples\[0\].*0\.\.2"),
        ((TRUE, [("a", "r", "b")]), TypeError, "valid, false triples: .*vocabulary"),
    ],
)
def test_bad_input(valid, error, message):
    with pytest.raises(error, match=message):
        classify(MODEL, valid=valid, test=(TRUE, FALSE))
