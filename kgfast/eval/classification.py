"""classify(): triple classification, by thresholds that are chosen on validation triples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.prediction import topk
from kgfast.eval.preparation import check_names
from kgfast.graph import TriplesLike, Vocabulary, VocabularyLike, with_times
from kgfast.graph.named import relation_names, with_names
from kgfast.graph.triples import as_triples_tensor
from kgfast.models import BlockScorer, RankableModel
from kgfast.text import text_table

Examples = tuple[TriplesLike, TriplesLike]


class ClassMetrics(NamedTuple):
    """Quality of the classes of some triples.

    Attributes
    ----------
    triples : int
        Number of true and false triples together.
    accuracy : float
        Share of triples with the right class; NaN without triples.
    precision, recall, f1 : float
        Values for the class of true triples; 0 where no triple is predicted to be true.
    """

    triples: int
    accuracy: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, eq=False, repr=False)
class Classification:
    """Classes of test triples, and the thresholds that decided them; prints as a table.

    Attributes
    ----------
    thresholds : Tensor
        float64 ``[R]``: triples of relation r with at least this score are predicted to be true.
        NaN for relations without validation triples; there ``shared_threshold`` decides.
    shared_threshold : float
        The threshold of all validation triples together.
    valid, test : ClassMetrics
        Quality on the validation and on the test triples.
    relations : Tensor
        int64 ``[T]``, the relations of the test triples: true ones first, then false ones.
    scores : Tensor
        ``[T]``, the scores of the test triples.
    is_true, predicted : Tensor
        bool ``[T]``, true classes and predicted classes of the test triples.
    relation_names : Vocabulary, optional
        The names of relations.
    """

    thresholds: Tensor
    shared_threshold: float
    valid: ClassMetrics
    test: ClassMetrics
    relations: Tensor
    scores: Tensor
    is_true: Tensor
    predicted: Tensor
    relation_names: Vocabulary | None = None

    def by_relation(self) -> dict[str | int, ClassMetrics]:
        """Return the quality of each relation with test triples, by name or id."""
        names = self.relation_names
        return {
            id if names is None else names.name(id): _metrics(
                self.is_true[members], self.predicted[members]
            )
            for id in self.relations.unique().tolist()
            for members in [self.relations == id]
        }

    def __repr__(self) -> str:
        count = int((~self.thresholds.isnan()).sum())
        title = f"Classification by a threshold for each of {count:,} relations"
        return f"{title}\n{class_table({'valid': self.valid, 'test': self.test})}"


def class_table(rows: Mapping[Any, ClassMetrics]) -> str:
    """Return the quality of classes as a table of text."""
    cells = [
        (str(name), [f"{row.triples:,}", *(f"{value:.4f}" for value in row[1:])])
        for name, row in rows.items()
    ]
    return text_table(ClassMetrics._fields, cells)


def classify(
    model: RankableModel | BlockScorer,
    *,
    valid: Examples,
    test: Examples,
    dims: int | None = None,
    vocabulary: VocabularyLike | None = None,
) -> Classification:
    """Classify test triples as true or false, by thresholds chosen on validation triples.

    A triple is predicted to be true if its score is at least the threshold of its relation. The
    threshold is the score of a validation triple: the score with the highest accuracy on the
    validation triples of the relation, and the lowest of equally good scores (Socher et al. 2013;
    Safavi and Koutra 2020). Relations without validation triples use one threshold, chosen on all
    validation triples. Scores are scores of tails, as :func:`kgfast.topk` returns them.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.rank` takes it.
    valid, test : pair
        True triples and false triples, each as :func:`kgfast.rank` takes triples.
    dims : int, optional
        Crop width, for croppable embeddings.
    vocabulary : pair of Vocabulary, Dataset or Triples, optional
        Vocabularies that turn names in rows into ids.

    Returns
    -------
    Classification

    Raises
    ------
    TypeError
        If ``valid`` or ``test`` is no pair, or holds names without ``vocabulary``.
    ValueError
        If ``valid`` lacks true or false triples; for ids out of range. The message names argument
        and row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> classified = classify(
    ...     model, valid=([(0, 0, 1)], [(0, 0, 2)]), test=([(0, 0, 1)], [(1, 0, 2), (2, 0, 0)]))
    >>> classified.test.accuracy, classified.predicted.tolist()
    (1.0, [True, False, False])
    """
    names: Vocabulary | None = None
    sizes: Any = {"num_entities": model.num_entities, "num_relations": model.num_relations}
    num_times, scored = getattr(model, "num_times", None), {}
    for argument, pair in (("valid", valid), ("test", test)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"{argument} must be a pair of true triples and false triples; got "
                f"{type(pair).__name__}"
            )
        parts = []
        for kind, triples in zip(("true", "false"), pair, strict=True):
            try:
                ids, labels = with_names(triples, vocabulary)
                check_names(labels, model)
                hrt = as_triples_tensor(ids, **sizes, num_times=num_times)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{argument}, {kind} triples: {error}") from None
            parts.append(hrt)
            names = relation_names(labels[1])[0] or names
            if argument == "valid" and not len(hrt):
                raise ValueError(f"valid: there are no {kind} triples to choose thresholds on")
        heads, relations, tails = torch.cat(parts).T
        is_true = torch.arange(len(heads), dtype=torch.int64, device="cpu") < len(parts[0])
        scores = torch.empty(0, dtype=torch.float32, device="cpu")
        if len(heads):
            queries = with_times({"heads": heads, "relations": relations}, num_times)
            best = topk(model, **queries, candidate_ids=tails[:, None], k=1, dims=dims)
            scores = best.scores[:, 0].cpu()
        scored[argument] = relations.cpu() // (num_times or 1), scores, is_true
    relations, scores, is_true = scored["valid"]
    count = model.num_relations // (num_times or 1)
    thresholds = torch.full((count,), torch.nan, dtype=torch.float64, device="cpu")
    for relation in relations.unique().tolist():
        members = relations == relation
        thresholds[relation] = _best_threshold(scores[members], is_true[members])
    shared = _best_threshold(scores, is_true)
    chosen = thresholds.nan_to_num(nan=shared)
    predicted = {name: scores.double() >= chosen[ids] for name, (ids, scores, _) in scored.items()}
    on_valid, on_test = (_metrics(scored[name][2], predicted[name]) for name in ("valid", "test"))
    return Classification(
        thresholds, shared, on_valid, on_test, *scored["test"], predicted["test"], names
    )


def _best_threshold(scores: Tensor, is_true: Tensor) -> float:
    """Return the score that separates best: the lowest score of the highest accuracy."""
    values, places = scores.double().unique(return_inverse=True)  # ascending
    right = torch.zeros(len(values), dtype=torch.int64, device="cpu")
    # While the threshold is at most its score, a true triple is right and a false one is wrong.
    right.index_add_(0, places, torch.where(is_true, 1, -1))
    counts = right.flip(0).cumsum(0).flip(0)
    return float(values[counts == counts.max()][0])


def _metrics(is_true: Tensor, predicted: Tensor) -> ClassMetrics:
    count = len(is_true)
    hits = int((is_true & predicted).sum())
    found, wanted = int(predicted.sum()), int(is_true.sum())
    return ClassMetrics(
        count,
        float((is_true == predicted).double().mean()),
        hits / found if found else 0.0,
        hits / wanted if wanted else 0.0,
        2 * hits / (found + wanted) if found + wanted else 0.0,
    )
