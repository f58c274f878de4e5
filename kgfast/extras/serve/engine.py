"""Model that answers: many questions of one kind by one call of `topk` or `rank`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from kgfast.eval import Index, rank, topk
from kgfast.frames import score_column
from kgfast.graph import KnownTriples, Names, TypeConstraints
from kgfast.models import Side

Answer = dict[str, Any]  # JSON object
_Rows = tuple[Answer, dict[str, list[Any]]]  # fields of all answers, and those of each query
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
    types: bool = False  # candidates are those of the relation

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key that questions of one call share."""
        return self.kind, self.sides, self.include_known, self.candidates is None, self.types

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


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
    types : TypeConstraints, optional
        Candidates for requests with ``"candidates": "types"``.
    """

    model: Any
    names: Names = (None, None)
    known: KnownTriples | None = None
    dim: int | None = None
    probabilities: Callable[[Tensor], Tensor | None] | None = None
    index: Index | None = None
    types: TypeConstraints | None = None

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the JSON object of each question of one ``key``, by one call of the model."""
        columns = {
            role: _ids([id for question in questions for id in question.columns[role]])
            for role in questions[0].columns
        }
        method = {"topk": self._topk, "rank": self._rank, "score": self._score}
        shared, rows = method[questions[0].kind](questions, columns)
        parts = [slice(*pair) for pair in pairwise(accumulate(map(len, questions), initial=0))]
        return [shared | {name: of_all[part] for name, of_all in rows.items()} for part in parts]

    def _topk(self, questions: Sequence[Question], columns: dict[str, Any]) -> _Rows:
        side, options = questions[0].sides[0], self._options(questions)
        there = self.model.num_relations if side == "relation" else self.model.num_entities
        k = min(there, max(question.k for question in questions))
        found = topk(self.model, **columns, k=k, pad=True, **options)
        each = [question.k for question in questions for _ in range(len(question))]
        listed = [
            self._listed(self.names[side == "relation"], ids[ids >= 0][:k], scores[ids >= 0][:k])
            for k, ids, scores in zip(each, found.ids.cpu(), found.scores.cpu(), strict=True)
        ]
        shared = {"predicted": side, "filtered": options["known"] is not None}
        return shared, {"answers": listed}

    def _listed(self, names: Any, ids: Tensor, scores: Tensor) -> list[Answer]:
        columns: dict[str, list[Any]] = {"id": ids.tolist()}
        if names is not None:
            columns["name"] = names.names_of(columns["id"])
            if names.labels:
                columns["label"] = list(map(names.labels.get, columns["name"]))
        columns["score"] = score_column(scores).tolist()
        if (found := self._meaning(scores)) is not None:
            columns["probability"] = found.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _rank(self, questions: Sequence[Question], columns: dict[str, Any]) -> _Rows:
        sides, options = questions[0].sides, self._options(questions)
        ranks = rank(self.model, torch.stack([*columns.values()], 1), sides=sides, **options)
        kinds = ("optimistic", "realistic", "pessimistic", "num_candidates")
        rows = zip(*(getattr(ranks, kind).tolist() for kind in kinds), strict=True)
        listed = [
            {
                side: dict(zip(kinds, values, strict=True))
                for side, values in zip(sides, zip(*row, strict=True), strict=True)
            }
            for row in rows
        ]
        return {"filtered": options["known"] is not None}, {"ranks": listed}

    def _score(self, _: Sequence[Question], columns: dict[str, Any]) -> _Rows:
        """Return scores of tails like `topk`: canonical, rounded once."""
        tails = columns.pop("tails")[:, None]
        scores = topk(self.model, **columns, k=1, candidate_ids=tails, dims=self.dim).scores[:, 0]
        rows = {"scores": score_column(scores).tolist()}
        if (found := self._meaning(scores)) is not None:
            rows["probabilities"] = found.tolist()
        return {}, rows

    def _options(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the options that `topk` and `rank` share."""
        candidates: Any = self.types if questions[0].types else None
        if questions[0].candidates is not None:
            candidates = _padded([ids for it in questions for ids in it.candidates or []])
        known = None if questions[0].include_known else self.known
        options = {"known": known, "candidate_ids": candidates}
        return options | {"dims": self.dim, "index": self.index}

    def _meaning(self, scores: Tensor) -> Tensor | None:
        if self.probabilities is None:
            return None
        # torch computes numbers that do not fill its vectors by another formula.
        found = self.probabilities(pad(scores, (0, -len(scores) % _VECTORS)))
        return None if found is None else found[: len(scores)]


def _ids(ids: list[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _padded(lists: list[list[int]]) -> Tensor:
    """Return lists as ``[B, K]``, with -1 in the places that are left."""
    return pad_sequence(list(map(_ids, lists)), batch_first=True, padding_value=-1)
