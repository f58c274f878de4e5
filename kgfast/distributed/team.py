"""Who holds which rows, who shares which triples, and what they send each other."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.distributed.held import Held
from kgfast.distributed.meeting import Meeting
from kgfast.distributed.ranges import check_cover
from kgfast.eval.batches import modules_of
from kgfast.graph.named import Names
from kgfast.models.base import Side

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Team:
    """The processes that hold the table once between them; other teams serve other queries.

    Attributes
    ----------
    meeting : Meeting
        Of all teams.
    group : ProcessGroup
        Of this one.
    everyone : ProcessGroup
    share, num_shares : int
        This team among how many.
    leads : bool
        Whether this process is the first of its team.
    """

    meeting: Meeting
    group: dist.ProcessGroup
    everyone: dist.ProcessGroup
    share: int
    num_shares: int
    leads: bool

    @classmethod
    def of(cls, meeting: Meeting, held: Held, facts: dict[str, str]) -> "Team":
        """Agree on what is asked for, and on who holds what.

        Raises
        ------
        ValueError
            In all processes: if they differ, hold rows twice, or leave rows out.
        """
        spans = meeting.agree(_facts_of(held) | facts, [held.start, held.stop])
        teams = teams_of([(start, stop) for start, stop in spans], held.total)
        share = next(i for i, ranks in enumerate(teams) if meeting.rank in ranks)
        everyone = meeting.group([range(meeting.size)])
        group = everyone if len(teams) == 1 else meeting.group(teams)
        leads = meeting.rank == min(teams[share])
        return cls(meeting, group, everyone, share, len(teams), leads)

    def share_of(self, batches: list[Tensor]) -> Iterator[Tensor]:
        """Its batches, as many as any other team's, so that all meet: the last may be empty."""
        for first in range(0, len(batches), self.num_shares):
            at = first + self.share
            yield batches[at] if at < len(batches) else batches[0][:0]

    def queries(self, held: Held, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """The queries of a batch, each made by who holds its anchor, ``[B, F]``."""
        here = held.holds(anchors)

        def made() -> Tensor:
            dtype = torch.float64 if held.dtype == torch.float64 else torch.float32
            shape = len(anchors), held.query_width(side)
            queries = torch.zeros(shape, dtype=dtype, device="cpu")
            if bool(here.any()):
                device = held.device
                own = held.queries(anchors[here].to(device), relations[here].to(device), side)
                queries[here] = own.cpu()
            return queries

        queries = self.meeting.together(made)
        return self.meeting.combine(queries, self.group).to(held.device)

    def target_scores(self, held: Held, queries: Tensor, targets: Tensor, side: Side) -> Tensor:
        """Canonical scores of a batch's targets, each by who holds it, float64 ``[B]``."""
        here = held.holds(targets)

        def scored() -> Tensor:
            scores = torch.zeros(len(targets), dtype=torch.float64, device="cpu")
            if bool(here.any()):
                own = targets[here].to(held.device)
                scores[here] = held.target_scores(queries[here.to(held.device)], own, side).cpu()
            return scores

        scores = self.meeting.together(scored)
        return self.meeting.combine(scores, self.group).to(held.device)

    def tell_others(self, values: Tensor) -> None:
        """Fill in, in place, what other teams found; where they did, this one has zeros."""
        if self.num_shares == 1:
            return
        if not self.leads:  # all of a team found the same
            values.zero_()
        self.meeting.together(lambda: None)
        bits = values.view(torch.int64)
        self.meeting.sum(bits, self.everyone)


def teams_of(spans: Spans, total: int) -> list[list[int]]:
    """The processes of each team, of the rows that each process holds.

    Raises
    ------
    ValueError
        If the ranges overlap, leave rows out, or are not held equally often.
    """
    holders: dict[tuple[int, int], list[int]] = {}
    idle = []
    for rank, (start, stop) in enumerate(spans):
        if start < stop:
            holders.setdefault((start, stop), []).append(rank)
        else:
            idle.append(rank)
    check_cover(sorted(holders), total, "shards")
    sizes = {span: len(ranks) for span, ranks in holders.items()}
    if len(set(sizes.values())) > 1:
        most, least = max(sizes, key=lambda s: sizes[s]), min(sizes, key=lambda s: sizes[s])
        raise ValueError(
            f"shards: rows {most[0]} .. {most[1] - 1} are held by {sizes[most]} processes, rows "
            f"{least[0]} .. {least[1] - 1} by {sizes[least]}; each part must be held equally often"
        )
    teams = [sorted(ranks) for ranks in zip(*holders.values(), strict=True)] or [[]]
    for place, rank in enumerate(idle):
        teams[place % len(teams)].append(rank)
    return teams


def digest(*values: Any) -> str:
    """What two processes compare instead of tensors and names."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            found.update(f"{value.dtype} {list(value.shape)}".encode())
            flat = value.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
            found.update(flat.view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()[:12]


def names_digest(names: Names) -> str:
    """That of vocabularies."""
    return " and ".join(
        "none" if part is None else f"{len(part):,} names {digest(part.names)}" for part in names
    )


def _facts_of(held: Held) -> dict[str, str]:
    """What must be the same of the models, in words."""
    model = held.model
    others = [
        value
        for module in modules_of(model)
        for values in (module.named_parameters, module.named_buffers)
        for name, value in sorted(values(recurse=False))
        if name != "entity"
    ]
    return {
        "the model": f"{type(model).__name__} of score {model.score}",
        "the shape of the entity table": f"[{held.total}, {held.width}]",
        "the dtype of the entity table": str(held.dtype).removeprefix("torch."),
        "the number of relations": str(model.num_relations),
        "the crop": str(held.dim),
        "the relations and other parameters": digest(*others),
    }
