"""Model that answers: many questions of one kind by one call of `topk` or `rank`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kgfast.eval import Index, rank, topk
from kgfast.extras.serve.questions import Question
from kgfast.frames import score_column
from kgfast.graph import KnownTriples, Names, TypeConstraints

Answer = dict[str, Any]  # JSON object
_VECTORS = 64  # numbers; no vector of torch holds more


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
        """Answer questions of one key by one call of `topk` or `rank`.

        Parameters
        ----------
        questions : sequence of Question
            At least one, all with the same ``key``.

        Returns
        -------
        list of dict
            The JSON object of each question.
        """
        columns = [
            torch.tensor([id for ids in parts for id in ids], dtype=torch.int64, device="cpu")
            for parts in zip(*(question.columns for question in questions), strict=True)
        ]
        ends = accumulate((len(question) for question in questions), initial=0)
        parts = [slice(*pair) for pair in pairwise(ends)]
        kind = questions[0].kind
        if kind == "topk":
            return self._topk(questions, columns, parts)
        if kind == "rank":
            return self._rank(questions, torch.stack(columns, 1), parts)
        return self._score(columns, parts)

    def _topk(
        self, questions: Sequence[Question], columns: list[Tensor], parts: list[slice]
    ) -> list[Answer]:
        """Answer all questions with the largest k, and cut."""
        (side,) = questions[0].sides
        anchors = "tails" if side == "head" else "heads"
        others = "tails" if side == "relation" else "relations"
        asked: dict[str, Any] = {anchors: columns[0], others: columns[1]}
        filtering = None if questions[0].include_known else self.known
        found = topk(
            self.model,
            **asked,
            k=max(question.k for question in questions),
            known=filtering,
            exclude=_excluded(questions),
            candidate_ids=self._candidates(questions),
            dims=self.dim,
            pad=True,
            index=self.index,
        )
        scores, ids = found.scores.cpu(), found.ids.cpu()
        names = self.names[1 if side == "relation" else 0]
        shared = {"predicted": side, "filtered": filtering is not None}
        return [
            shared
            | {
                "answers": [
                    self._listed(names, row_ids, row_scores)
                    for row_ids, row_scores in zip(
                        ids[part, : question.k], scores[part, : question.k], strict=True
                    )
                ]
            }
            for question, part in zip(questions, parts, strict=True)
        ]

    def _listed(self, names: Any, ids: Tensor, scores: Tensor) -> list[Answer]:
        """Return the answers to a query, best first."""
        count = int((ids >= 0).sum())
        columns: dict[str, list[Any]] = {"id": ids[:count].tolist()}
        if names is not None:
            columns["name"] = names.names_of(columns["id"])
            if names.labels:
                columns["label"] = list(map(names.labels.get, columns["name"]))
        columns["score"] = score_column(scores[:count]).tolist()
        if (found := self._meaning(scores[:count])) is not None:
            columns["probability"] = found.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _candidates(self, questions: Sequence[Question]) -> Any:
        """Return the candidates of all queries, in the form for `topk` and `rank`."""
        if questions[0].types:
            return self.types
        if questions[0].candidates is None:
            return None
        return _csr([ids for it in questions for ids in it.candidates or []])

    def _rank(
        self, questions: Sequence[Question], triples: Tensor, parts: list[slice]
    ) -> list[Answer]:
        question = questions[0]
        filtering = None if question.include_known else self.known
        ranks = rank(
            self.model,
            triples,
            known=filtering,
            sides=question.sides,
            candidate_ids=self._candidates(questions),
            dims=self.dim,
            index=self.index,
        )
        kinds = ("optimistic", "realistic", "pessimistic", "num_candidates")
        rows = zip(*(getattr(ranks, kind).tolist() for kind in kinds), strict=True)
        listed = [
            {
                side: dict(zip(kinds, values, strict=True))
                for side, values in zip(question.sides, zip(*row, strict=True), strict=True)
            }
            for row in rows
        ]
        return [{"filtered": filtering is not None, "ranks": listed[part]} for part in parts]

    def _score(self, columns: list[Tensor], parts: list[slice]) -> list[Answer]:
        """Return scores of tails like `topk`: canonical, rounded once."""
        heads, relations, tails = columns
        scores = topk(
            self.model,
            heads=heads,
            relations=relations,
            k=1,
            candidate_ids=tails[:, None],
            dims=self.dim,
        ).scores[:, 0]
        meaning = self._meaning(scores)
        answers: list[Answer] = [{"scores": score_column(scores[part]).tolist()} for part in parts]
        if meaning is not None:
            for answer, part in zip(answers, parts, strict=True):
                answer["probabilities"] = meaning[part].tolist()
        return answers

    def _meaning(self, scores: Tensor) -> Tensor | None:
        if self.probabilities is None:
            return None
        # torch computes numbers that do not fill its vectors by another formula.
        found = self.probabilities(pad(scores, (0, -len(scores) % _VECTORS)))
        return None if found is None else found[: len(scores)]


def _excluded(questions: Sequence[Question]) -> tuple[Tensor, Tensor] | None:
    """Return the ids that each query leaves out, as CSR; None if no query leaves any out."""
    if not any(question.exclude for question in questions):
        return None
    return _csr([ids for it in questions for ids in it.exclude or [[]] * len(it)])


def _csr(lists: list[list[int]]) -> tuple[Tensor, Tensor]:
    indptr = torch.tensor([0, *map(len, lists)], dtype=torch.int64, device="cpu").cumsum(0)
    every = [id for ids in lists for id in ids]
    return indptr, torch.tensor(every, dtype=torch.int64, device="cpu")
