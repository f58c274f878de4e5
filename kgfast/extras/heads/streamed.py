"""Output layer with a softmax, which never stores the scores of all outputs."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast import ops
from kgfast.eval import RowRanks, rank_rows
from kgfast.extras.heads.sampling import Outputs, draw, draw_of, drawn_outputs
from kgfast.ops import (
    TABLE_DTYPES,
    check_device,
    check_ids,
    check_index,
    check_int,
    check_tensor,
    check_unique,
)

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # default of ignore_index in torch
_TOP = 1 << 20  # best scores in memory at once in top_k
_COLDEST = 1e-20  # smallest temperature: a score divided by it is finite in float32


class StreamedHead(nn.Module):
    """Replacement of ``nn.Linear(dim, num_outputs)`` and the softmax after it.

    Scores are ``hidden @ weight.T + bias``. They are made and reduced chunk by chunk, forward and
    backward, so memory does not grow with hidden states times outputs (docs/how-to/heads.md). Every
    method takes hidden states ``[..., D]`` of any leading axes. ``candidate_ids`` (int64 ``[M]``,
    distinct, in any order) restricts a call to these outputs; ids stay ids of all outputs. Numbers
    must be finite (:mod:`kgfast.ops.values`).

    Parameters
    ----------
    num_outputs, dim : int
        ``V`` and ``D``.
    bias : bool
        Learn a number for each output.
    weight : nn.Parameter, optional
        ``[V, D]`` floating point, used without a copy, such as the weight of an embedding, to tie
        both. A new weight is uniform in ``+-D**-0.5``, as in :class:`torch.nn.Linear`.
    sparse : bool
        Make ``torch.sparse_coo`` gradients of the weight if a method touches few rows: ``embed``,
        ``sampled_loss``, and ``loss`` of ``candidate_ids``.
        :class:`kgfast.RowAdam` takes such gradients. A bias has a dense gradient.
    device, dtype
        Device and dtype of new parameters.

    Raises
    ------
    ValueError, TypeError
        For sizes below 1, or a weight that is no parameter ``[V, D]`` of floating point.

    Examples
    --------
    >>> head = StreamedHead(1000, 8)
    >>> hidden = torch.randn(2, 3, 8)
    >>> targets = torch.randint(1000, (2, 3))
    >>> loss = head.loss(hidden, targets)
    >>> loss.backward()
    >>> head.greedy(hidden).shape, head.sample(hidden, temperature=0.7, top_k=50, seed=1).shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        num_outputs: int,
        dim: int,
        *,
        bias: bool = False,
        weight: nn.Parameter | None = None,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_int("num_outputs", num_outputs, 1)
        check_int("dim", dim, 1)
        self.num_outputs, self.dim, self.sparse = num_outputs, dim, sparse
        if weight is None:
            room = torch.empty(num_outputs, dim, dtype=dtype, device=device)
            weight = nn.Parameter(room.uniform_(-(dim**-0.5), dim**-0.5))
        self.weight = _checked_weight(weight, num_outputs, dim)
        zeros = torch.zeros(num_outputs, dtype=weight.dtype, device=weight.device)
        self.register_parameter("bias", nn.Parameter(zeros) if bias else None)

    def forward(self, hidden: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """Return :meth:`loss`, for wrappers that call modules."""
        return self.loss(hidden, targets, **options)

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        candidate_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the softmax cross entropy, as :func:`torch.nn.functional.cross_entropy`.

        It is differentiable in hidden states, weight and bias, once. It is exact, and two runs give
        equal bits.

        Parameters
        ----------
        hidden : Tensor
            ``[..., D]`` float32, float64 (computed in float64) or half precision.
        targets : Tensor
            int64 ``[...]``: outputs, or ``ignore_index``.
        label_smoothing : float
            In ``[0, 1)``: this share of a label is spread over all outputs, or all candidates.
        ignore_index : int
            Targets that do not count.
        reduction : {"mean", "sum", "none"}
            ``mean`` is over the targets that count, 0 if none does.
        candidate_ids : Tensor, optional
            Candidates of the softmax, whose rows are copied: ``[M, D]``. Every target that counts
            must be a candidate.

        Returns
        -------
        Tensor
            A scalar, or ``[...]`` with 0 where a target does not count; float32, float64 for
            float64 hidden states.

        Raises
        ------
        ValueError, TypeError
            For a shape, dtype, device or number that does not fit, and a target that is no output;
            the message names the argument and the first position.
        """
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be mean, sum or none; got {reduction!r}")
        rows: Tensor = self.weight
        bias: Tensor | None = self.bias
        ids = None
        if candidate_ids is not None:
            self._check_candidates(candidate_ids)
            ids = candidate_ids.sort().values
            rows, bias = self._rows(ids)
        flat, places, where = self._counted(hidden, targets, ignore_index, ids)
        arguments = flat, rows, bias, places, label_smoothing, "dot"
        if reduction != "none":
            count = max(1, len(places)) if reduction == "mean" else 1
            return ops.cross_entropy(*arguments, divisor=count)
        losses = ops.cross_entropy(*arguments)
        if where is not None:
            losses = losses.new_zeros(targets.numel()).index_copy(0, where, losses)
        return losses.view(targets.shape)

    def sampled_loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        num_negatives: int,
        *,
        seed: int,
        ignore_index: int = IGNORED,
    ) -> Tensor:
        """Estimate :meth:`loss` from few rows: rows of targets, and of a uniform draw.

        The softmax is over the distinct targets of the call and ``num_negatives`` uniform draws of
        other outputs. Each draw stands for several outputs, so the estimate of the sum of
        exponentials is unbiased, given at least one draw (sampled softmax, Bengio & Senécal 2008,
        with exact targets). With ``num_negatives`` of at least ``V`` the estimate equals
        :meth:`loss`.

        Parameters
        ----------
        hidden, targets, ignore_index
            See :meth:`loss`.
        num_negatives : int
            At least 1.
        seed : int
            Seed of the draw: use another seed in each step.

        Returns
        -------
        Tensor
            The mean over targets that count, 0 if none does.

        Raises
        ------
        ValueError, TypeError
            See :meth:`loss`.
        """
        check_int("num_negatives", num_negatives, 1)
        check_int("seed", seed)
        _, hits, _ = self._counted(hidden, targets, ignore_index, None)
        ids, shift = drawn_outputs(hits, self.num_outputs, num_negatives, seed)
        rows, bias = self._rows(ids)
        if bias is not None:
            wide = torch.promote_types(bias.dtype, torch.float32)
            shift = bias.to(wide) + shift.to(wide)
        flat, places, _ = self._counted(hidden, targets, ignore_index, ids)
        return ops.cross_entropy(flat, rows, shift, places, 0.0, "dot", divisor=max(1, len(hits)))

    @torch.no_grad()
    def rank(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = IGNORED,
        candidate_ids: Tensor | None = None,
    ) -> tuple[RowRanks, Tensor]:
        """Rank the targets among all outputs, exactly, and compute log-probabilities of targets.

        Two sweeps read the weight: no kernel makes counts and sums of exponentials together.

        Parameters
        ----------
        hidden, targets, ignore_index, candidate_ids
            See :meth:`loss`.

        Returns
        -------
        ranks : RowRanks
            A rank for each target that counts, in order. Not differentiable.
        log_prob : Tensor
            ``[...]``, 0 where a target does not count.
        """
        options: Any = {"ignore_index": ignore_index, "candidate_ids": candidate_ids}
        flat, hits, _ = self._counted(hidden, targets, ignore_index, None)
        bad = ((targets != ignore_index) & ~hidden.isfinite().all(-1)).nonzero()
        if len(bad):
            raise ValueError(f"hidden{bad[0].tolist()} holds a NaN or an infinity")
        log_prob = -self.loss(hidden, targets, reduction="none", **options)
        ranks = rank_rows(flat, self.weight, hits, bias=self.bias, candidate_ids=candidate_ids)
        return ranks, log_prob

    def greedy(self, hidden: Tensor, *, candidate_ids: Tensor | None = None) -> Tensor:
        """Return the best output, int64 ``[...]``; the lowest id among equals."""
        return self.topk(hidden, 1, candidate_ids=candidate_ids)[1][..., 0]

    def topk(
        self, hidden: Tensor, k: int, *, candidate_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the best ``k`` outputs, exactly: by canonical float64 scores.

        Parameters
        ----------
        hidden : Tensor
            ``[..., D]``.
        k : int
            From 1 to the number of candidates.
        candidate_ids : Tensor, optional

        Returns
        -------
        scores, ids : Tensor
            ``[..., k]``, from best to worst, the lowest id first among equals. Not differentiable.
        """
        flat = self._flat(hidden)
        check_int("k", k, 1, self._check_candidates(candidate_ids))
        scores, ids = ops.topk(flat, self.weight, k, bias=self.bias, candidate_ids=candidate_ids)
        shape = *hidden.shape[:-1], k
        return scores.view(shape), ids.view(shape)

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        *,
        seed: int,
        candidate_ids: Tensor | None = None,
    ) -> Tensor:
        """Draw an output for each row from ``softmax(scores / temperature)``, exactly.

        The draw is a function of the arguments: noise depends on the seed, the number of the row
        and the id. Equal calls give equal draws; another draw needs another seed.

        Parameters
        ----------
        hidden : Tensor
            ``[..., D]``.
        temperature : float
            In ``1e-20 .. 1e20``.
        top_k : int, optional
            Draw only from the best ``top_k`` outputs of :meth:`topk`.
        seed : int
        candidate_ids : Tensor, optional

        Returns
        -------
        Tensor
            int64 ``[...]``.
        """
        flat = self._flat(hidden)
        count = self._check_candidates(candidate_ids)
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"temperature must be a number; got {type(temperature).__name__}")
        if not _COLDEST <= temperature <= 1 / _COLDEST:
            raise ValueError(
                f"temperature must be in {_COLDEST} .. {1 / _COLDEST}; got {temperature} (greedy() "
                f"takes the best)"
            )
        check_int("seed", seed)
        if top_k is None:
            ids = None if candidate_ids is None else candidate_ids.sort().values
            bias = None if self.bias is None else self.bias.detach()
            drawn = draw(flat, Outputs(self.weight.detach(), bias, ids), temperature, seed)
            return drawn.view(hidden.shape[:-1])
        check_int("top_k", top_k, 1, count)
        drawn = torch.empty(len(flat), dtype=torch.int64, device=flat.device)
        step = math.ceil(_TOP / top_k)
        for first in range(0, len(flat), step):
            scores, ids = self.topk(flat[first : first + step], top_k, candidate_ids=candidate_ids)
            drawn[first : first + step] = draw_of(scores, ids, temperature, seed, first)
        return drawn.view(hidden.shape[:-1])

    def embed(self, ids: Tensor) -> Tensor:
        """Return rows of the weight ``[..., D]`` for ids ``[...]``: input tokens, if tied.

        With ``sparse`` the gradient holds only these rows.
        """
        self._check_outputs("ids", ids, ids)
        return functional.embedding(ids, self.weight, sparse=self.sparse)

    def extra_repr(self) -> str:
        """Return sizes and options."""
        has_bias = self.bias is not None
        return f"{self.num_outputs}, {self.dim}, bias={has_bias}, sparse={self.sparse}"

    def _flat(self, hidden: Tensor) -> Tensor:
        self._check_hidden(hidden)
        return hidden.detach().reshape(-1, self.dim)

    def _rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = functional.embedding(ids, self.weight, sparse=self.sparse)
        return rows, None if self.bias is None else self.bias[ids]

    def _counted(
        self, hidden: Tensor, targets: Tensor, ignore_index: int, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the hidden states ``[B, D]`` and targets ``[B]`` that count, and their places.

        The places are None if all count. ``ids`` are candidates, in which targets are then places.
        """
        self._check_hidden(hidden)
        check_tensor("targets", targets)
        is_counted = targets != ignore_index
        self._check_outputs("targets", targets, targets.where(is_counted, 0))
        if targets.shape != hidden.shape[:-1]:
            raise ValueError(
                f"targets must have shape {list(hidden.shape[:-1])}, one for each hidden state; "
                f"got {list(targets.shape)}"
            )
        if ids is not None:
            places = torch.searchsorted(ids, targets.contiguous()).clamp_(max=len(ids) - 1)
            missing = ((ids[places] != targets) & is_counted).nonzero()
            if len(missing):
                place = missing[0].tolist()
                raise ValueError(
                    f"targets[{', '.join(map(str, place))}] must be in candidate_ids; got "
                    f"{int(targets[tuple(place)])}"
                )
            targets = places
        flat, targets = hidden.reshape(-1, self.dim), targets.reshape(-1)
        if bool(is_counted.all()):
            return flat, targets, None
        where = is_counted.reshape(-1).nonzero()[:, 0]
        return flat.index_select(0, where), targets[where], where

    def _check_hidden(self, hidden: Tensor) -> None:
        check_tensor("hidden", hidden)
        if not hidden.is_floating_point():
            raise TypeError(f"hidden must be a floating-point tensor; got {hidden.dtype}")
        if hidden.ndim < 1 or hidden.shape[-1] != self.dim:
            raise ValueError(
                f"hidden must have shape [..., {self.dim}], the width of the head; got "
                f"{list(hidden.shape)}"
            )
        check_device("hidden", hidden, self.weight, "the weight of the head")

    def _check_outputs(self, name: str, ids: Tensor, counted: Tensor) -> None:
        check_tensor(name, ids, (torch.int64,))
        check_device(name, ids, self.weight, "the weight of the head")
        check_ids(name, counted, self.num_outputs)

    def _check_candidates(self, candidate_ids: Tensor | None) -> int:
        """Check distinct candidates, at least one, and return how many there are."""
        if candidate_ids is None:
            return self.num_outputs
        check_index("candidate_ids", candidate_ids, (None,), self.weight, "the rows of the head")
        if not len(candidate_ids):
            raise ValueError("candidate_ids must name at least one output; the list is empty")
        check_ids("candidate_ids", candidate_ids, self.num_outputs)
        check_unique("candidate_ids", candidate_ids)
        return len(candidate_ids)


def _checked_weight(weight: nn.Parameter, num_outputs: int, dim: int) -> nn.Parameter:
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"weight must be a parameter, as tying is; got {type(weight).__name__}")
    if weight.shape != (num_outputs, dim):
        raise ValueError(f"weight must have shape [{num_outputs}, {dim}]; got {list(weight.shape)}")
    if weight.dtype not in TABLE_DTYPES:
        raise TypeError(f"weight must be of floating point; got {weight.dtype}")
    return weight
