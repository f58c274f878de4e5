"""Model that answers a question by one call of `topk` or `rank`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from kgfast.eval import Index, Ranks, rank, topk
from kgfast.frames import score_column
from kgfast.graph import KnownTriples, Names, with_times
from kgfast.models import Side

Answer = dict[str, Any]  # JSON object
_VECTORS = 64  # numbers; no vector of torch holds more


@dataclass(frozen=True)
class Question:
    """Request as ids."""

    kind: Literal["topk", "rank", "score"]
    columns: dict[str, list[int]]  # heads, relations, tails; for topk two of these
    sides: tuple[Side, ...] = ()  # sides that are predicted, or ranked
    include_known: bool = False  # known triples are candidates, too
    k: int = 0  # answers to a query
    candidates: Sequence[list[int]] | None = None  # distinct ids of each query; None: not listed


@dataclass(frozen=True)
class Engine:
    """Model to serve, with names, known triples and index.

    Attributes
    ----------
    model
        A model for :func:`kgfast.rank`. Nothing may change the model while the server runs.
    names : pair of Vocabulary
        Names of entities and of relations; each may be None.
    known : KnownTriples, optional
        Triples that answers leave out, unless a request includes known triples.
    dim : int, optional
        Width of the sub-model, for croppable embeddings.
    probabilities : callable, optional
        Function that turns scores into probabilities of the same shape, or returns None, such as
        :meth:`kgfast.training.LoadedRun.probabilities`.
    index : Index, optional
        Index of the model; croppable, with a ``dim``.
    """

    model: Any
    names: Names = (None, None)
    known: KnownTriples | None = None
    dim: int | None = None
    probabilities: Callable[[Tensor], Tensor | None] | None = None
    index: Index | None = None

    def answer(self, question: Question) -> Answer:
        """Return the JSON object that answers a question."""
        columns: Any = {role: _ids(ids) for role, ids in question.columns.items()}
        columns = with_times(columns, getattr(self.model, "num_times", None))
        if question.kind == "score":
            return self._score(columns)
        candidates: Any = None
        if question.candidates is not None:
            lists = list(map(_ids, question.candidates))
            candidates = pad_sequence(lists, batch_first=True, padding_value=-1)
        known = None if question.include_known else self.known
        options = {"known": known, "candidate_ids": candidates}
        options |= {"dims": self.dim, "index": self.index}
        is_filtered = {"filtered": known is not None}
        if question.kind == "rank":
            triples = torch.stack([*columns.values()], 1)
            ranks = rank(self.model, triples, sides=question.sides, **options)
            return is_filtered | {"ranks": _listed_ranks(ranks)}
        (side,) = question.sides
        there = self.model.num_relations if side == "relation" else self.model.num_entities
        k = min(there, question.k)
        best = topk(self.model, **columns, k=k, pad=True, **options)
        answers = [
            self._listed(self.names[side == "relation"], ids[ids >= 0], scores[ids >= 0])
            for ids, scores in zip(best.ids.cpu(), best.scores.cpu(), strict=True)
        ]
        return {"predicted": side} | is_filtered | {"answers": answers}

    def _listed(self, names: Any, ids: Tensor, scores: Tensor) -> list[Answer]:
        columns: dict[str, list[Any]] = {"id": ids.tolist()}
        if names is not None:
            columns["name"] = names.names_of(columns["id"])
            if names.labels:
                columns["label"] = list(map(names.labels.get, columns["name"]))
        columns["score"] = score_column(scores).tolist()
        if (probabilities := self._meaning(scores)) is not None:
            columns["probability"] = probabilities.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _score(self, columns: dict[str, Any]) -> Answer:
        """Return scores of tails like `topk`: canonical, rounded once."""
        tails = columns.pop("tails")[:, None]
        scores = topk(self.model, **columns, k=1, candidate_ids=tails, dims=self.dim).scores[:, 0]
        answer = {"scores": score_column(scores).tolist()}
        if (probabilities := self._meaning(scores)) is not None:
            answer["probabilities"] = probabilities.tolist()
        return answer

    def _meaning(self, scores: Tensor) -> Tensor | None:
        if self.probabilities is None:
            return None
        # torch computes numbers that do not fill its vectors by another formula.
        probabilities = self.probabilities(pad(scores, (0, -len(scores) % _VECTORS)))
        return None if probabilities is None else probabilities[: len(scores)]


def _ids(ids: list[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _listed_ranks(ranks: Ranks) -> list[Answer]:
    kinds = ("optimistic", "realistic", "pessimistic", "num_candidates")
    rows = zip(*(getattr(ranks, kind).tolist() for kind in kinds), strict=True)
    return [
        {
            side: dict(zip(kinds, values, strict=True))
            for side, values in zip(ranks.sides, zip(*row, strict=True), strict=True)
        }
        for row in rows
    ]
