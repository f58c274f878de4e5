"""neighbours(): the entities with rows closest to the rows of given entities."""

from typing import Any, get_args

import torch
from torch import Tensor

from kgfast.eval.answers import Metric, Neighbours
from kgfast.eval.candidates import Allowed, checked_ids_of
from kgfast.eval.driver import Call
from kgfast.eval.preparation import check_names, check_rankable, evaluating
from kgfast.eval.queries import Queries
from kgfast.eval.rows import entity_table
from kgfast.eval.searches import AskedQueries, BestSearch
from kgfast.graph import IdsLike, VocabularyLike, names_of
from kgfast.models import Candidates, RankableModel
from kgfast.models.base import Side, candidates_at
from kgfast.models.relations import is_in_blocks
from kgfast.models.tables import gathered, held_table
from kgfast.ops.differentiable import full_precision
from kgfast.ops.topk import check_k
from kgfast.tables import Rows
from kgfast.tables.protocol import TensorTable
from kgfast.tables.views import UnitRows
from kgfast.text import shown


def neighbours(
    model: RankableModel,
    ids: IdsLike,
    k: int = 10,
    *,
    metric: Metric = "cosine",
    vocabulary: VocabularyLike | None = None,
) -> Neighbours:
    """Find the ``k`` entities with rows closest to the rows of given entities, exactly.

    A row holds real numbers: a complex row of D numbers is a row of 2D real numbers. Scores of all
    entities are never stored. Equal scores are ordered by the lowest id; only the entity itself is
    left out. Another entity with an equal row is the first neighbour.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it, with a table of entities: in memory, in files, or in the
        shards of one process. Without an attribute ``entity``, the candidates for tails are read.
    ids : int, sequence of int or Tensor, or names
        The given entities, ``[Q]`` or one.
    k : int
        Number of neighbours, at most the number of other entities.
    metric : {"cosine", "dot", "l1", "l2"}
        Higher is closer: the cosine, the dot product, minus the sum of absolute differences, or
        minus the Euclidean distance. For cosines, rows are divided by their lengths in float64.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: ``ids`` may be names, and neighbours show names.

    Returns
    -------
    Neighbours
        Neighbours on the device of the table.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or each other, a model without a table, a NaN or an
        infinity in the table and, for cosines, a row of zeros; the message names the first row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0]]), torch.zeros(1, 2))
    >>> neighbours(model, [0, 1], k=2)
    Neighbours of 2 entities by cosine, k = 2
    0  2 1, 1 0.6
    1  0 0.6, 2 0.6
    """
    if metric not in get_args(Metric):
        raise ValueError(
            f"metric must be one of {', '.join(get_args(Metric))}; got {shown(metric)}"
        )
    check_rankable(model)
    names = names_of(vocabulary)
    check_names(names, model)
    asked = checked_ids_of("ids", ids, model.num_entities, names[0]).reshape(-1)
    check_k(k, None)
    if k >= model.num_entities:
        raise ValueError(
            f"k must be at most the number of other entities, {model.num_entities - 1}; got {k}"
        )
    table = _entity_table(model)
    rows = _RowsAsModel(table, metric)
    if metric == "cosine":
        unit = UnitRows(TensorTable(table.resolve_neg()) if isinstance(table, Tensor) else table)
        rows = _RowsAsModel(unit, "dot")
    search = _Search(
        rows, AskedQueries(asked, 0, None, None), Allowed(None, None, "anchor"), (None, None), k
    )
    Call(rows, "").run(search)
    scores, best = search.collected()
    search.results = []
    scores = scores.to(torch.float64 if table.dtype == torch.float64 else torch.float32)
    return Neighbours(scores, best, search.anchors, metric, vocabulary=names).to(table.device)


class _RowsAsModel:
    """Model with the rows of one table as queries and candidates."""

    nested, num_relations = True, 1

    def __init__(self, entity: Tensor | Rows, score: str) -> None:
        self.entity: Any = entity
        self.score = score
        self.num_entities, self.dim = len(entity), int(entity.shape[1])

    def with_entity(self, entity: Tensor) -> "_RowsAsModel":
        return _RowsAsModel(entity, self.score)

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        return full_precision(gathered(self.entity, anchors))

    def candidates(self, side: Side) -> Any:
        return Candidates(self.entity)


class _Search(BestSearch):
    """Prediction that finds neighbours."""

    name = "neighbours"

    def words(self, queries: Queries, place: int) -> str:
        row = int(queries.rows[place])
        return f"ids[{row}] = {int(self.anchors[row])}: the row holds a NaN or an infinity"


def _entity_table(model: Any) -> Tensor | Rows:
    table = entity_table(model)
    if table is not None:
        return table
    held = getattr(model, "entity", None)
    if not isinstance(held, Tensor):
        if is_in_blocks(model):
            raise TypeError("model must have a table of entities: a BlockScorer has none")
        with evaluating(model), torch.no_grad():
            held = candidates_at(model, "tail", None).table
    found: Tensor = held_table("entity", held)
    return found.detach()
