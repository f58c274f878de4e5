"""Calls that a processor must serve; their results are printed as JSON, for comparison.

``python emulated.py EXTENSION`` loads the extension alone, without torch and numpy: an emulator
takes a second for that. ``python emulated.py`` loads the package. Inputs are multiples of 1/64,
which no mathematical function of the processor rounds.
"""

import importlib.util
import json
import random
import sys
from array import array
from types import SimpleNamespace as Fields

ISAS = ("avx512", "avx2", "baseline")
QUERIES, ROWS, DIM, WIDTH = 5, 70, 19, 7
# name: code, planes, term_ulps of kernels/scores.py; rscf scores also come without a factor
PLAIN = {"dot": (0, 1, 2), "l1": (1, 1, 2), "l2": (2, 1, 4), "rotate": (3, 2, 4)}
MOVED = {"rscf_rotate": (4, 2, 4), "rscf_l1": (5, 1, 2), "rscf_l2": (6, 1, 4)}


class Memory:
    """Arrays that calls read and write, by address."""

    def __init__(self):
        self.draw, self.arrays = random.Random(7), []

    def put(self, kind, values):
        self.arrays.append(array(kind, values))
        return self.arrays[-1]

    def numbers(self, count, kind="f", around=0):
        return self.put(kind, [around + self.draw.randint(-64, 64) / 64 for _ in range(count)])

    def zeros(self, count, kind="f"):
        return self.put(kind, [0] * count)


def at(values):
    return values.buffer_info()[0]


def view(values, rows, planes, dim=DIM):
    """View rows of planes as kernels/cpu/views.py does."""
    return Fields(
        data=at(values),
        dtype=0,
        num_rows=rows,
        row_stride=planes * dim,
        start=[plane * dim for plane in range(planes)],
        step=1,
    )


def scores_of(extension, isa, memory, results):
    """Rank, choose the best, score and differentiate, by every score."""
    machine = Fields(isa=isa, threads=1, tiers=extension.find_tiers(isa))
    targets = memory.put("q", [3, 69, 0, 3, 41])
    known = memory.put("q", [0, 2, 2, 3, 3, 5]), memory.put("q", [1, 2, 68, 4, 5])
    index = memory.put("q", [memory.draw.randrange(ROWS) for _ in range(QUERIES * WIDTH)])
    order = sorted(range(len(index)), key=lambda place: (index[place], place))
    ids = sorted(set(index))
    first = [sum(other < it for other in index) for it in ids] + [len(index)]
    groups = [memory.put("q", part) for part in (ids, order, first)]
    forms = [(name, *facts, False) for name, facts in PLAIN.items()]
    forms += [(name, *facts, moved) for name, facts in MOVED.items() for moved in (True, False)]
    for name, code, planes, ulps, has_factor in forms:
        is_rscf = name in MOVED
        wide = planes * (1 + is_rscf) + has_factor
        queries, rows = memory.numbers(QUERIES * wide * DIM), memory.numbers(ROWS * planes * DIM)
        factor = view(memory.numbers(ROWS * DIM, around=1), ROWS, 1) if has_factor else None
        operands = Fields(
            score=-code if is_rscf and not has_factor else code,
            term_ulps=ulps,
            query=view(queries, QUERIES, wide),
            table=view(rows, ROWS, planes),
            factor=factor,
            planes=planes,
            bias=None,
            candidate_ids=None,
            has_subset=False,
            num_candidates=ROWS,
            packed=None,
        )
        with_bias = Fields(**vars(operands) | {"bias": view(memory.numbers(ROWS), 1, 1, ROWS)})
        counts, pairs = memory.zeros(4 * QUERIES, "q"), memory.zeros(64, "q")
        where = Fields(indptr=at(known[0]), indices=at(known[1]))
        extension.rank_counts(
            machine,
            operands,
            widths=[DIM],
            targets=at(targets),
            target_scores=None,
            sorted_ids=None,
            known=where,
            nan_worst=False,
            counts=at(counts),
            pairs=at(pairs),
        )
        best, best_ids = memory.zeros(6 * QUERIES), memory.zeros(6 * QUERIES, "q")
        extension.topk(machine, operands, DIM, 6, where, False, at(best), at(best_ids))
        key = f"{name}{' moved' if has_factor else ''}"
        results |= {f"{key} ranks": counts, f"{key} best": best_ids, f"{key} best scores": best}
        for kind, count in (("pairs", ROWS), ("named", WIDTH)):
            out = memory.zeros(QUERIES * count)
            place = at(index) if kind == "named" else None
            extension.scores(machine, with_bias, [DIM], [0], place, count, at(out))
            grad = memory.numbers(QUERIES * count)
            made = [memory.zeros(QUERIES * wide * DIM), memory.zeros(ROWS * planes * DIM)]
            views = [view(made[0], QUERIES, wide), view(made[1], ROWS, planes), None]
            if has_factor:
                made.append(memory.zeros(ROWS * DIM))
                views[2] = view(made[2], ROWS, 1)
            strides = Fields(
                data=at(grad), crop_stride=QUERIES * count, row_stride=count, column_stride=1
            )
            call = machine, operands, [DIM], strides, *views
            if place:
                of_ids, order, begin = map(at, groups)
                rows_of = Fields(
                    ids=of_ids, order=order, first=begin, num_ids=len(ids), whole_table=True
                )
                extension.indexed_backward(*call, place, WIDTH, rows_of)
            else:
                extension.pairwise_backward(*call, False)
            results |= {f"{key} {kind}": out}
            results |= {f"{key} {kind} gradient {i}": it for i, it in enumerate(made)}


def losses_of(extension, isa, memory, results):
    """Walk over scores, by every pass, and update rows."""
    machine = Fields(isa=isa, threads=1, tiers=0)
    for walk in range(8):
        scores = memory.numbers(QUERIES * ROWS)
        sums = [memory.zeros(QUERIES, "d") for _ in range(3)]
        factors = [memory.numbers(QUERIES, around=2) for _ in range(3)]
        rows = map(at, (*sums, *factors))
        extension.loss_pass(machine, walk, at(scores), QUERIES, ROWS, *rows, 0.25)
        results |= {f"loss {walk}": scores}
        results |= {f"loss {walk} sum {i}": it for i, it in enumerate(sums)}
    ids = memory.put("q", [2, 5, 69])
    for name in ("adam", "adagrad"):
        tables = [memory.numbers(ROWS * DIM, around=2) for _ in range(3 if name == "adam" else 2)]
        gradients = memory.numbers(3 * DIM)
        where = [*map(at, tables), at(ids), at(gradients)]
        if name == "adam":
            extension.row_adam(1, *where, 3, DIM, 0.1, 0.001, 0.125, 1.5, 1e-8, 0.01)
        else:
            extension.adagrad(machine, *where, 3 * DIM, DIM, 0.125, 1e-8, 0.01)
        results |= {f"{name} {i}": it for i, it in enumerate(tables)}


def of_the_extension(path):
    """Return the instruction sets that the extension finds, and the results of each."""
    spec = importlib.util.spec_from_file_location("_cpu", path)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    found = [isa for isa in ISAS if extension.find_isa(isa)]
    results = {}
    for isa in found:
        memory, made = Memory(), {}
        scores_of(extension, isa, memory, made)
        losses_of(extension, isa, memory, made)
        results[isa] = {name: values.tolist() for name, values in made.items()}
    tiers = {isa: extension.find_tiers(isa) for isa in found}
    return {"best": extension.find_isa(""), "tiers": tiers, "results": results}


def of_the_package():
    """Return what the package finds, and its ranks, best answers, losses and a step of training."""
    import torch

    import kgfast
    from support import loss_models
    from support.small_runs import GRAPH, trainer_of

    model = kgfast.RotatE(*GRAPH.planted(dim=16), relation_format="phase")
    known = kgfast.KnownTriples(GRAPH.train, GRAPH.valid, GRAPH.test)
    ranks = kgfast.rank(model, GRAPH.test, known=known)
    best = kgfast.topk(model, heads=[0, 7], relations=2, k=10, index=kgfast.Index(model))
    results = {
        "optimistic": ranks.optimistic.flatten().tolist(),
        "best": best.ids.flatten().tolist(),
    }
    for name, loss in kgfast.losses.LOSSES.items():
        small, over = loss_models.MODELS["rotate"](), loss.over
        if over == "crops":
            small = kgfast.MED(small, [2, 6])
        others = () if over == "entities" else (loss_models.some_negatives(),)
        value = loss()(small, loss_models.some_triples(), *others)
        value.backward()
        gradients = [it.grad.to_dense().flatten() for it in small.parameters()]
        results[f"loss {name}"] = torch.cat([value.detach()[None], *gradients]).tolist()
    trainer = trainer_of(train={"steps": 1})
    trainer.fit()
    results["step"] = torch.cat([it.flatten() for it in trainer.model.parameters()]).tolist()
    return {"info": str(kgfast.info()), "best": kgfast.info().isa, "results": results}


if __name__ == "__main__":
    print(json.dumps(of_the_extension(sys.argv[1]) if sys.argv[1:] else of_the_package()))
