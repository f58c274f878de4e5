"""Rank UMLS by wrong conversions of other libraries' tables, and check that they are refused.

    python benchmarks/conversions.py            writes results/cpu-conversions.json

A model of each library is trained for some epochs. Its test set is ranked twice, filtered: as the
adapter converts the model, and with one option forgotten. Exit code 1 if a wrong one is not
refused, or a right one ranks otherwise than the library's own scores do.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pykeen.datasets import UMLS, Nations
from torch import Tensor, nn
from torch_geometric.nn.kge import TransE

import kgfast
from kgfast.adapters.dglke import load_dglke
from kgfast.adapters.foreign import check_agreement
from kgfast.adapters.pyg import from_pyg
from kgfast.adapters.pykeen import from_pykeen
from kgfast.models.rotate import EPSILON
from lib.benchmark import Benchmark, Options
from lib.columns import CONVERSIONS
from lib.peers.pykeen_loop import PykeenLoop

DIM, EPOCHS, BATCH, GAMMA = 32, 30, 512, 6.0
Scores = Callable[[Tensor, Tensor, Tensor], Tensor]


class Conversion(NamedTuple):
    """A model of a library, right and wrong, and the library's own scores."""

    library: str
    model: str
    forgotten: str
    right: Any
    wrong: Any
    own: Scores
    refused: Callable[[], Any]


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Train, and yield a row for each library."""
    data, epochs = (Nations(), 1) if options.quick else (UMLS(), EPOCHS)
    with tempfile.TemporaryDirectory() as folder:
        for make in (of_pykeen, of_pyg, of_dglke):
            torch.manual_seed(0)
            row = row_of(make(data, epochs, Path(folder)), data)
            yield {"dataset": type(data).__name__, "epochs": epochs} | row


def row_of(made: Conversion, data: Any) -> dict[str, Any]:
    """Return the MRR of all three, and the adapter's message for the wrong one."""
    splits = [it.mapped_triples for it in (data.training, data.validation, data.testing)]
    known, test = kgfast.KnownTriples(*splits), splits[-1]

    def mrr(model: Any) -> float:
        return kgfast.rank(model, test, known=known).mrr

    try:
        refused = made.refused()
    except ValueError as error:
        refused = str(error).split("/")[-1]  # the folder does not matter
    else:
        refused = ""
    return {
        "library": made.library,
        "model": made.model,
        "forgotten": made.forgotten,
        "right": mrr(made.right),
        "wrong": mrr(made.wrong),
        "own": mrr(in_blocks(made.own, data)),
        "refused": refused,
    }


def in_blocks(scores: Scores, data: Any) -> kgfast.BlockScorer:
    """Wrap the library's own scores, pair by pair."""

    def of_block(anchors: Tensor, relations: Tensor, side: str, ids: Tensor) -> Tensor:
        shape = len(anchors), len(ids)
        own, relation = (it[:, None].expand(shape).reshape(-1) for it in (anchors, relations))
        others = ids.expand(shape).reshape(-1)
        heads, tails = (own, others) if side == "tail" else (others, own)
        return scores(heads, relation, tails).reshape(shape)

    return kgfast.BlockScorer(of_block, data.num_entities, data.num_relations)


def of_pykeen(data: Any, epochs: int, _: Path) -> Conversion:
    """Train RotatE, whose distance is the norm of the whole vector."""
    hrt, sizes = data.training.mapped_triples, (data.num_entities, data.num_relations)
    adam = partial(torch.optim.Adam, lr=0.01)
    loop = PykeenLoop(hrt, sizes, "RotatE", "slcwa", adam, {"embedding_dim": DIM})
    loop.train(hrt, BATCH, epochs=epochs)
    model = loop.model.eval()

    def own(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        return model.score_hrt(torch.stack([h, r, t], 1))

    right = from_pykeen(model)
    wrong = kgfast.RotatE(
        *(right.entity, right.relation),
        relation_format=right.relation_format, layout=right.layout, norm="modulus",
    )  # fmt: skip
    return Conversion(
        "PyKEEN", "RotatE", "`norm`", right, wrong, own,
        lambda: check_agreement(wrong, own, "RotatE of PyKEEN"),
    )  # fmt: skip


def of_pyg(data: Any, epochs: int, _: Path) -> Conversion:
    """Train TransE, which normalises nodes whenever it scores."""
    triples = data.training.mapped_triples
    model = TransE(data.num_entities, data.num_relations, DIM)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = model.loader(*triples.T, batch_size=BATCH, shuffle=True)
    for _epoch in range(epochs):
        for h, r, t in loader:
            optimizer.zero_grad()
            model.loss(h, r, t).backward()
            optimizer.step()
    wrong = kgfast.TransE(model.node_emb.weight.detach(), model.rel_emb.weight.detach(), norm="l1")
    return Conversion(
        "PyG", "TransE", "to normalise nodes", from_pyg(model), wrong, model,
        lambda: check_agreement(wrong, model, "TransE of PyG"),
    )  # fmt: skip


class _RotatE(nn.Module):
    """RotatE by DGL-KE's equation: halves, and relations in units that gamma sets."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.limit = (GAMMA + EPSILON) / DIM
        rows = (data.num_entities, 2 * DIM), (data.num_relations, DIM)
        self.entity, self.relation = (
            nn.Parameter(torch.empty(*size, dtype=torch.float32, device="cpu")) for size in rows
        )
        for table in self.parameters():
            nn.init.uniform_(table, -self.limit, self.limit)

    def forward(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        phase = self.relation[r] * (torch.pi / self.limit)
        (h_re, h_im), (t_re, t_im) = self.entity[h].chunk(2, -1), self.entity[t].chunk(2, -1)
        re = h_re * phase.cos() - h_im * phase.sin() - t_re
        im = h_re * phase.sin() + h_im * phase.cos() - t_im
        return GAMMA - torch.stack([re, im]).norm(dim=0).sum(-1)


def of_dglke(data: Any, epochs: int, folder: Path) -> Conversion:
    """Train RotatE and save it as DGL-KE does, with gamma in config.json."""
    model, triples = _RotatE(data), data.training.mapped_triples
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _epoch in range(epochs):
        for h, r, t in (rows.T for rows in triples[torch.randperm(len(triples))].split(BATCH)):
            false = torch.randint(data.num_entities, (2, len(h)), dtype=torch.int64, device="cpu")
            optimizer.zero_grad()
            loss = nn.functional.softplus(-model(h, r, t)).mean()
            for wrong in (model(h, r, false[0]), model(false[1], r, t)):
                loss = loss + nn.functional.softplus(wrong).mean() / 2
            loss.backward()
            optimizer.step()
    config = {"dataset": "umls", "model_name": "RotatE", "hidden_dim": DIM, "double_ent": True}
    for what, table in (("entity", model.entity), ("relation", model.relation)):
        np.save(folder / f"umls_RotatE_{what}.npy", table.detach().numpy())
    (folder / "config.json").write_text(json.dumps(config | {"gamma": GAMMA}))
    right = load_dglke(folder)
    wrong = kgfast.RotatE(right.entity, right.relation, gamma=0.0)

    def without_gamma() -> Any:
        (folder / "config.json").write_text(json.dumps(config))
        return load_dglke(folder)

    return Conversion("DGL-KE", "RotatE", "`gamma`", right, wrong, model, without_gamma)


BENCHMARK = Benchmark(
    "conversions",
    __doc__,
    {"conversions": rows_of},
    tables=CONVERSIONS,
    is_right=lambda row: abs(row["own"] - row["right"]) < 1e-3 and bool(row["refused"]),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
