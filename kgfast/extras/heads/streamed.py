"""Output layer with a softmax, which never stores the scores of all outputs."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast import ops
from kgfast.extras.heads import checks
from kgfast.extras.heads.sampling import Outputs, draw, draw_of, drawn_outputs
from kgfast.ops import TABLE_DTYPES

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # default of ignore_index in torch
_TOP = 1 << 20  # best scores in memory at once in top_k


class StreamedHead(nn.Module):
    """Replacement of ``nn.Linear(dim, num_outputs)`` and the softmax after it.

    Scores are ``hidden @ weight.T + bias``. They are made and reduced chunk by chunk, forward and
    backward, so memory does not grow with hidden states times outputs (docs/how-to/heads.md). Every
    method takes hidden states ``[..., D]`` of any leading axes. ``candidate_ids`` (int64 ``[M]``,
    distinct, in any order) restricts a call to these outputs; ids stay ids of all outputs. Numbers
    must be finite (:mod:`kgfast.ops.finite`).

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
        ``sampled_loss``, and ``loss`` and ``log_prob`` of ``candidate_ids``.
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
        checks.check_positive_int("num_outputs", num_outputs)
        checks.check_positive_int("dim", dim)
        self.num_outputs, self.dim, self.sparse = num_outputs, dim, sparse
        if weight is None:
            room = torch.empty(num_outputs, dim, dtype=dtype, device=device)
            weight = nn.Parameter(room.uniform_(-(dim**-0.5), dim**-0.5))
        self.weight = _checked_weight(weight, num_outputs, dim)
        of_bias = None
        if bias:
            of_bias = nn.Parameter(
                torch.zeros(num_outputs, dtype=weight.dtype, device=weight.device)
            )
        self.register_parameter("bias", of_bias)

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
        checks.check_hidden(hidden, self.weight)
        checks.check_targets(targets, hidden, self.weight, ignore_index)
        is_counted = targets != ignore_index
        pool = self._pool(candidate_ids)
        found = self._counted(hidden, targets, is_counted, pool)
        if reduction == "none":
            return _spread(found.losses(label_smoothing), found.where, targets)
        return found.total(label_smoothing, is_mean=reduction == "mean")

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
        checks.check_hidden(hidden, self.weight)
        checks.check_targets(targets, hidden, self.weight, ignore_index)
        checks.check_positive_int("num_negatives", num_negatives)
        checks.check_seed(seed)
        is_counted = targets != ignore_index
        drawn = drawn_outputs(targets[is_counted], self.num_outputs, num_negatives, seed)
        pool = self._rows(drawn.ids)
        bias = drawn.shift if pool.bias is None else pool.bias + drawn.shift.to(pool.bias.dtype)
        found = self._counted(hidden, targets, is_counted, pool._replace(bias=bias))
        return found.total(0.0, is_mean=True)

    def log_prob(
        self, hidden: Tensor, targets: Tensor, *, candidate_ids: Tensor | None = None
    ) -> Tensor:
        """Return log-probabilities of targets under the softmax; differentiable as :meth:`loss`.

        Parameters
        ----------
        hidden : Tensor
            ``[..., D]``.
        targets : Tensor
            int64 ``[...]``.
        candidate_ids : Tensor, optional
            See :meth:`loss`.

        Returns
        -------
        Tensor
            ``[...]``, float32, float64 for float64 hidden states.
        """
        checks.check_hidden(hidden, self.weight)
        checks.check_targets(targets, hidden, self.weight)
        everywhere = torch.ones_like(targets, dtype=torch.bool)
        found = self._counted(hidden, targets, everywhere, self._pool(candidate_ids))
        return -found.losses(0.0).view(targets.shape)

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
        count = self._check_pool(candidate_ids)
        checks.check_positive_int("k", k, count)
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
        count = self._check_pool(candidate_ids)
        checks.check_temperature(temperature)
        checks.check_seed(seed)
        if top_k is None:
            ids = None if candidate_ids is None else candidate_ids.sort().values
            bias = None if self.bias is None else self.bias.detach()
            drawn = draw(flat, Outputs(self.weight.detach(), bias, ids), temperature, seed)
            return drawn.view(hidden.shape[:-1])
        checks.check_positive_int("top_k", top_k, count)
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
        checks.check_ids_of("ids", ids, self.weight)
        return functional.embedding(ids, self.weight, sparse=self.sparse)

    def extra_repr(self) -> str:
        """Return sizes and options."""
        has_bias = self.bias is not None
        return f"{self.num_outputs}, {self.dim}, bias={has_bias}, sparse={self.sparse}"

    def _flat(self, hidden: Tensor) -> Tensor:
        checks.check_hidden(hidden, self.weight)
        return hidden.detach().reshape(-1, self.dim)

    def _check_pool(self, candidate_ids: Tensor | None) -> int:
        if candidate_ids is None:
            return self.num_outputs
        checks.check_candidates(candidate_ids, self.weight)
        return len(candidate_ids)

    def _pool(self, candidate_ids: Tensor | None) -> "_Pool":
        if candidate_ids is None:
            return _Pool(self.weight, self.bias, None)
        checks.check_candidates(candidate_ids, self.weight)
        return self._rows(candidate_ids.sort().values)

    def _rows(self, ids: Tensor) -> "_Pool":
        rows = functional.embedding(ids, self.weight, sparse=self.sparse)
        return _Pool(rows, None if self.bias is None else self.bias[ids], ids)

    def _counted(
        self, hidden: Tensor, targets: Tensor, is_counted: Tensor, pool: "_Pool"
    ) -> "_Counted":
        if pool.ids is not None:
            targets = checks.places_of(targets, pool.ids, is_counted)
        flat, targets = hidden.reshape(-1, self.dim), targets.reshape(-1)
        where = None
        if not bool(is_counted.all()):
            where = is_counted.reshape(-1).nonzero()[:, 0]
            flat, targets = flat.index_select(0, where), targets[where]
        return _Counted(flat, targets, where, pool)


class _Pool(NamedTuple):
    """Outputs of a softmax."""

    rows: Tensor  # [M, D]
    bias: Tensor | None  # [M]
    ids: Tensor | None  # [M], ascending; None: all outputs


class _Counted(NamedTuple):
    """Hidden states and targets that count, with cross entropy."""

    hidden: Tensor  # [B, D]
    targets: Tensor  # [B]
    where: Tensor | None  # [B], places among all targets; None: all count
    pool: _Pool

    def losses(self, smoothing: float) -> Tensor:
        return ops.cross_entropy(*self._arguments(smoothing))

    def total(self, smoothing: float, *, is_mean: bool) -> Tensor:
        divisor = max(1, len(self.targets)) if is_mean else 1
        return ops.cross_entropy_total(*self._arguments(smoothing), divisor)

    def _arguments(
        self, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, float, str]:
        return self.hidden, self.pool.rows, self.pool.bias, self.targets, smoothing, "dot"


def _spread(losses: Tensor, where: Tensor | None, targets: Tensor) -> Tensor:
    """Return losses in the shape of targets, 0 where a target does not count."""
    if where is not None:
        losses = losses.new_zeros(targets.numel()).index_copy(0, where, losses)
    return losses.view(targets.shape)


def _checked_weight(weight: nn.Parameter, num_outputs: int, dim: int) -> nn.Parameter:
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"weight must be a parameter, as tying is; got {type(weight).__name__}")
    if weight.shape != (num_outputs, dim):
        raise ValueError(f"weight must have shape [{num_outputs}, {dim}]; got {list(weight.shape)}")
    if weight.dtype not in TABLE_DTYPES:
        raise TypeError(f"weight must be of floating point; got {weight.dtype}")
    return weight
