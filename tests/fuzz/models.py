"""Random models of every kind, and the scores of triples by dense formulas in any precision."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.case import Case, matrix
from kgfast import MED, RSCF, Candidates, ComplEx, DistMult, RotatE, TransE
from support import oracles
from support.problems import cast, strided

NAMES = ("rotate", "rotate l2", "transe", "distmult", "complex", "rescal")
FILTERED = ("rotate", "transe")
_DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
_VALUES = ("normal", "normal", "grid", "few", "lognormal")


Note = Callable[[Tensor], None]


@dataclass
class Drawn:
    """A model and how it was made."""

    model: Any
    name: str
    rscf: bool = False
    dims: list[int] | None = None  # crops of MED
    split: bool = False
    cancelling: dict[str, float] = field(default_factory=dict)  # in gradients: how large
    # leaves of tables that a graph computed
    leaves: dict[str, Tensor] = field(default_factory=dict)

    @property
    def base(self) -> Any:
        """Return the model inside of RSCF and MED."""
        model = self.model
        while isinstance(model, (MED, RSCF)):
            model = model.model
        return model


class Rescal:
    """A model of the user's own: no base class."""

    score = "dot"

    def __init__(self, entity: Tensor, relation: Tensor) -> None:
        self.entity, self.relation = entity, relation
        self.num_entities, self.num_relations = len(entity), len(relation)
        self.dim = entity.shape[1]

    def queries(
        self, anchors: Tensor, relations: Tensor, side: str, dims: int | None = None
    ) -> Tensor:
        equation = "bd,bde->be" if side == "tail" else "be,bde->bd"
        return torch.einsum(equation, self.entity[anchors], self.relation[relations])

    def candidates(self, side: str) -> Candidates:
        return Candidates(self.entity)


def draw(case: Case, *, trains: bool = False) -> Drawn:
    """Draw a model; in training with tables that require gradients, in float32 or float64.

    Such tables are parameters, or computed from leaves, as the output of an encoder is.
    """
    name = case.choice(NAMES if not trains else NAMES[:-1])
    entities, relations = case.pick.randint(2, 60), case.pick.randint(1, 5)
    dim = case.choice((2, 3, 4, 8, 17, 40, 64))
    dtypes = (torch.float32, torch.float64) if trains else _DTYPES
    dtype, values = case.choice(dtypes), case.choice(_VALUES if not trains else _VALUES[:1])
    if name == "rescal":
        dtype = torch.float32
    leaves: list[Tensor] = []
    is_computed = trains and case.chance(0.3)

    def table(rows: int, width: int, scale: float = 1.0) -> Tensor:
        found = cast(scale * matrix(case, values, rows, width), dtype)
        if not trains:
            return strided(found, case.choice(("plain", "negated")))
        leaves.append(nn.Parameter(found))
        return 1 * leaves[-1] if is_computed else leaves[-1]

    drawn = Drawn(_model(case, name, entities, relations, dim, table), name)
    if is_computed:
        drawn.leaves = dict(zip(("entity", "relation"), leaves, strict=True))
    if name in FILTERED and case.chance(0.35) and _may_be_filtered(drawn.model):
        drawn.model = RSCF(drawn.model, seed=case.pick.randrange(2**31))
        drawn.rscf = True
    if name != "rescal" and case.chance(0.35):
        _croppable(case, drawn, dim)
    case.note(model=name, dtype=dtype, values=values, entities=entities, relations=relations)
    case.note(dim=dim, rscf=drawn.rscf, med=drawn.dims, split=drawn.split, computed=is_computed)
    for option in ("layout", "norm", "relation_format", "gamma"):
        if hasattr(drawn.base, option):
            case.note(**{option: getattr(drawn.base, option)})
    return drawn


def _may_be_filtered(model: Any) -> bool:
    layout, stored = (getattr(model, it, "") for it in ("layout", "relation_format"))
    return layout != "interleaved" and stored != "complex"


def _model(case: Case, name: str, entities: int, relations: int, dim: int, table: Any) -> Any:
    layout = case.choice(("halves", "interleaved"))
    gamma = case.choice((12.0, 6.0, 0.0))
    if name.startswith("rotate"):
        stored = case.choice(("raw", "phase", "complex"))
        width = 2 * dim if stored == "complex" else dim
        norm = "l2" if name == "rotate l2" else "modulus"
        return RotatE(
            *(table(entities, 2 * dim), table(relations, width)),
            gamma=gamma, relation_format=stored, norm=norm, layout=layout,
        )  # fmt: skip
    if name == "transe":
        norm = case.choice(("l1", "l2"))
        return TransE(table(entities, dim), table(relations, dim), gamma=gamma, norm=norm)
    if name == "distmult":
        return DistMult(table(entities, dim), table(relations, dim))
    if name == "complex":
        return ComplEx(table(entities, 2 * dim), table(relations, 2 * dim), layout=layout)
    return Rescal(table(entities, dim), torch.randn(relations, dim, dim))


def _croppable(case: Case, drawn: Drawn, dim: int) -> None:
    base = drawn.base
    splits = getattr(base, "layout", "halves") == "halves" and case.chance(0.4)
    if drawn.name == "rotate l2" and base.layout == "halves" and not splits:
        return  # has no crops
    dims = sorted({*(case.pick.randint(1, dim) for _ in range(3)), dim})
    drawn.model = MED(drawn.model, dims, crop="split" if splits else "prefix")
    drawn.dims, drawn.split = dims, splits


def score_of(
    drawn: Drawn, tables: dict[str, Tensor], hrt: Tensor, side: str, dim: int | None = None
) -> Tensor:
    """Score triples ``[..., 3]`` with gamma, by the equations, from tables by their names."""
    base = drawn.base
    head, tail = (tables["entity"][hrt[..., place]] for place in (0, 2))
    relation = tables["relation"][hrt[..., 1]]
    head, tail, relation = (
        cropped(drawn, it, width, dim)
        for it, width in (
            (head, tables["entity"].shape[1]),
            (tail, tables["entity"].shape[1]),
            (relation, tables["relation"].shape[1]),
        )
    )
    if drawn.rscf:
        head, relation, tail = _filtered(drawn, tables, head, relation, tail, dim)
    gamma = getattr(base, "gamma", 0.0)
    layout = getattr(base, "layout", "halves")
    if drawn.name == "transe":
        order = 1 if base.score == "l1" else 2
        return gamma - torch.linalg.vector_norm(head + relation - tail, order, dim=-1)
    if drawn.name == "distmult":
        return (head * relation * tail).sum(-1)
    h, t = (oracles.planes(it, 2, layout == "interleaved") for it in (head, tail))
    if drawn.name == "complex":
        r = oracles.planes(relation, 2, layout == "interleaved")
        re, im = h[0] * r[0] - h[1] * r[1], h[0] * r[1] + h[1] * r[0]
        return (re * t[0] + im * t[1]).sum(-1)
    if base.relation_format == "complex":
        r = oracles.planes(relation, 2, layout == "interleaved")
        cosine, sine = r[0], r[1]
    else:
        angle = relation * base.phase_unit
        cosine, sine = angle.cos(), angle.sin()
    if side == "tail":
        re, im = h[0] * cosine - h[1] * sine, h[0] * sine + h[1] * cosine
        re, im = re - t[0], im - t[1]
    else:  # the tail turned back; the same where the rotation has length 1
        re, im = t[0] * cosine + t[1] * sine, t[1] * cosine - t[0] * sine
        re, im = re - h[0], im - h[1]
    if base.norm == "l2":
        return gamma - torch.linalg.vector_norm(torch.cat([re, im], -1), dim=-1)
    return gamma - torch.linalg.vector_norm(torch.stack([re, im]), dim=0).sum(-1)


def cropped(drawn: Drawn, rows: Tensor, width: int, dim: int | None) -> Tensor:
    """Cut the columns of a crop out of rows, in the same layout."""
    if dim is None:
        return rows
    count = width // drawn.base.dim
    if drawn.split or getattr(drawn.base, "layout", "halves") == "interleaved":
        return rows[..., : count * dim]
    return torch.cat([part[..., :dim] for part in rows.chunk(count, -1)], -1)


def _filtered(
    drawn: Drawn, tables: dict[str, Tensor], head: Tensor, relation: Tensor, tail: Tensor,
    dim: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Filter rows that are cropped already, by the equations of RSCF."""

    def crop(name: str, first: str, second: str) -> Tensor:
        wide = [tables[it].shape[1] for it in (first, second)]
        rows = cropped(drawn, tables[name].T, wide[0], dim).T
        return cropped(drawn, rows, wide[1], dim)

    def normal(name: str, inputs: Tensor, first: str, second: str) -> tuple[Tensor, Note]:
        """Rows of length 1, plus 1; the note says how large the parts of their slopes are."""
        rows = inputs @ crop(name, first, second)
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-12)
        unit = rows / norms

        def note(gradient: Tensor) -> None:
            along = (gradient * unit.detach()).abs().sum(-1, keepdim=True)
            size = (gradient.abs().amax(-1, keepdim=True) + along) / norms.detach()
            size = size * inputs.detach().abs().amax(-1, keepdim=True)
            drawn.cancelling[name] = drawn.cancelling.get(name, 0.0) + float(size.sum())

        return unit + 1, note

    def watched(product: Tensor, other: Tensor, note: Note) -> Tensor:
        """Note the size of a product with a scale: the parts of two entities may cancel."""
        if product.requires_grad and product.dtype == torch.float64:
            product.register_hook(lambda gradient: note(gradient * other.detach()))
        return product

    scale, note = normal("A1", relation, "relation", "entity")
    of_head, note_head = normal("A2", head, "entity", "relation")
    of_tail, note_tail = normal("A3", tail, "entity", "relation")
    moved = of_head * of_tail * relation
    watched(moved, of_tail * relation, note_head)
    relation = watched(moved, of_head * relation, note_tail)
    return watched(scale * head, head, note), relation, watched(scale * tail, tail, note)


def parameters_of(drawn: Drawn) -> dict[str, Tensor]:
    """Return parameters by the last part of their names, and leaves of the model's tables."""
    found: dict[str, Tensor] = {**drawn.leaves}
    for name, parameter in drawn.model.named_parameters():
        found.setdefault(name.rpartition(".")[2], parameter)  # a network's parts come last
    return found


def tables_of(drawn: Drawn, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: it.detach().to(dtype, copy=True).requires_grad_(it.requires_grad)
        for name, it in parameters_of(drawn).items()
    }
