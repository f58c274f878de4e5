"""ConvE (Dettmers et al. 2018, arXiv 1707.01476): a convolution over entity and relation."""

import math
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast.models.base import Candidates, Model, Shapes, Side, query_rows
from kgfast.models.evaluated import product
from kgfast.models.tables import Table


class ConvE(Model):
    """ConvE: ``score(h, r, t) = relu(W vec(relu([h; r] * filters))) . t + b_t`` (eq. 1).

    Entity and relation are reshaped to images, one on top of the other. Batch normalisation and
    dropout stand where the authors' code has them. A head query is the tail query (t, r^-1).
    Queries come from a network in float32 (float64 for float64 tables); ranks are exact given these
    queries. There are no crops.

    Parameters
    ----------
    entity : Tensor
        ``[N, D]``.
    relation : Tensor
        ``[2R, D]``: the relations, then their inverses.
    embedding_height : int
        Rows of an image, a divisor of ``D``.
    channels, kernel_size : int
        Channels and kernel size of the convolution.
    input_dropout, feature_dropout, hidden_dropout : float
        Dropout of the image, of whole channels, and of the hidden layer.
    initial_bias : float
        Initial value of the biases: about ``-log(N)`` with binary cross entropy over all entities
        (the prior of Lin et al. 2017, section 4.1).

    Attributes
    ----------
    bias : Parameter
        ``[N]``, per entity.

    Raises
    ------
    ValueError
        If the image does not fit the width or the kernel, relations do not come in pairs, or the
        bias is not finite.

    Examples
    --------
    >>> model = ConvE.init(num_entities=5, num_relations=2, dim=8, embedding_height=2, seed=0)
    >>> model.eval().queries(torch.tensor([0, 1]), torch.tensor([0, 1]), "head").shape
    torch.Size([2, 8])
    """

    score = "dot"
    parallel_queries = True
    has_large_operators = True
    has_inverses = True

    def __init__(
        self,
        entity: Table,
        relation: Table,
        *,
        embedding_height: int = 10,
        channels: int = 32,
        kernel_size: int = 3,
        input_dropout: float = 0.2,
        feature_dropout: float = 0.2,
        hidden_dropout: float = 0.3,
        initial_bias: float = 0.0,
    ) -> None:
        super().__init__(entity, relation)
        entity, relation = self.entity, self.relation
        self.dim = entity.shape[1]
        self.embedding_height = embedding_height
        height = embedding_height
        width, rest = divmod(self.dim, height)
        if rest or min(2 * height, width) < kernel_size:
            raise ValueError(
                f"rows of {self.dim} must make images of height {height} (embedding_height), into "
                f"which a kernel of {kernel_size} fits"
            )
        self._image = height, width
        if len(relation) % 2 or relation.shape[1] != self.dim:
            raise ValueError(
                f"relation must have shape [2R, {self.dim}], the inverse relations last; "
                f"got {list(relation.shape)}"
            )
        if not math.isfinite(initial_bias):
            raise ValueError(f"initial_bias must be finite; got {initial_bias}")
        self._hidden = channels * (2 * height - kernel_size + 1) * (width - kernel_size + 1)
        like: dict[str, Any] = {"device": "cpu", "dtype": self._dtype}  # which draws the weights
        self.image_norm = nn.BatchNorm2d(1, **like)
        self.image_dropout = nn.Dropout(input_dropout)
        self.convolution = nn.Conv2d(1, channels, kernel_size, **like)
        self.feature_norm = nn.BatchNorm2d(channels, **like)
        self.feature_dropout = nn.Dropout2d(feature_dropout)
        self.projection = nn.Linear(self._hidden, self.dim, **like)
        self.hidden_dropout = nn.Dropout(hidden_dropout)
        self.hidden_norm = nn.BatchNorm1d(self.dim, **like)
        for layer in self.children():
            layer.to(entity.device)
        bias = torch.empty(len(entity), dtype=self._dtype, device=entity.device)
        self.bias = nn.Parameter(bias.fill_(initial_bias))

    @classmethod
    def _shapes(cls, num_entities: int, num_relations: int, dim: int) -> Shapes:
        return (num_entities, dim), (2 * num_relations, dim)

    @property
    def num_relations(self) -> int:
        return len(self.relation) // 2

    def relation_ids(self, relations: Tensor, side: Side) -> Tensor:
        return relations + self.num_relations if side == "head" else relations

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        self._check_side(side)
        return Candidates(self.entity, self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Serve ``half()`` and the like; with tables in half precision the network is float32."""
        tables = self.entity, self.relation

        def convert(tensor: Tensor) -> Tensor:
            made: Tensor = fn(tensor)
            is_half = made.dtype in (torch.float16, torch.bfloat16)
            if not is_half or any(tensor is it or tensor is it.grad for it in tables):
                return made
            return tensor.to(made.device, torch.float32)

        return super()._apply(convert, recurse)

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        if dims is not None:
            self.crop_width(dims)
        relations = self.relation_ids(relations, side)
        rows = [
            query_rows(table, ids).to(self._dtype).view(-1, 1, *self._image)
            for table, ids in ((self.entity, anchors), (self.relation, relations))
        ]
        image = self.image_dropout(self.image_norm(torch.cat(rows, 2)))  # [B, 1, 2H, W]
        features = self.feature_norm(self.convolution(image)).relu()
        features = self.feature_dropout(features).flatten(1)  # [B, hidden]
        hidden = self._normalised(self.hidden_dropout(self._projected(features)))
        return hidden.relu().to(self._dtype)

    def _projected(self, features: Tensor) -> Tensor:
        """Return the projection of features; equal rows stay equal if no gradient is made."""
        # MKL treats rows of whole cache lines equally already.
        if torch.is_grad_enabled() or self._hidden % 16 == 0:
            projected: Tensor = self.projection(features)
            return projected
        bias: Tensor = self.projection.bias
        return product(features, self.projection.weight.mT) + bias

    def _normalised(self, hidden: Tensor) -> Tensor:
        """Normalise a batch; a single query takes the running statistics."""
        norm = self.hidden_norm
        if self.training and len(hidden) == 1:
            return functional.batch_norm(
                hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        normalised: Tensor = norm(hidden)
        return normalised

    def crop_width(self, dim: int) -> NoReturn:
        """Raise a ValueError: a network has no crops."""
        raise ValueError("dims: ConvE cannot be cropped")

    first_columns = crop_width
