"""The bits of a query depend neither on the queries beside it nor on the number of threads."""

import itertools
import threading

import pytest
import torch
from torch import nn

import kgfast
from kgfast.adapters.affine import AffineModel, Parts
from kgfast.models import evaluated
from support.sampled import threads

N, R, WIDTH = 400, 4, 1000  # products of such rows differ with their number, and with threads


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def shaken(module):
    """Return a network whose normalisations are not those of a fresh one."""
    generator = torch.Generator().manual_seed(7)
    for layer in module.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.running_mean.normal_(generator=generator)
            layer.running_var.uniform_(0.5, 2.0, generator=generator)
    return module.requires_grad_(False)


def conve():
    return shaken(kgfast.ConvE.init(N, R, 200, embedding_height=20, seed=0))


class Encoder(nn.Module):
    """A module of the user's own."""

    score, num_entities, num_relations, dim = "dot", N, R, 37

    def __init__(self):
        super().__init__()
        self.table, self.wide = numbers(N, self.dim), numbers(N + R, WIDTH, seed=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            self.net = nn.Sequential(
                nn.Linear(WIDTH, self.dim), nn.BatchNorm1d(self.dim), nn.Dropout(0.5)
            )
        shaken(self)

    def queries(self, anchors, relations, side):
        rows = self.wide[anchors] * self.wide[N + relations]
        self.held = self.net(rows if side == "tail" else -rows)  # no two threads may do so
        return self.held

    def candidates(self, side):
        return self.table


class Derived(kgfast.DistMult):
    """A subclass whose queries come from a network."""

    def __init__(self):
        super().__init__(numbers(N, WIDTH), numbers(R, WIDTH, seed=1))
        self.net = shaken(nn.Linear(WIDTH, WIDTH, bias=False))
        self.net.weight.copy_(numbers(WIDTH, WIDTH, seed=2) / WIDTH)

    def _queries(self, anchors, relations, side, dims):
        return self.net(self.entity[anchors] * self.relation[relations])


class Odd(Encoder):
    """A network whose rows begin at odd places of memory, which MKL may add up differently."""

    def __init__(self):
        super().__init__()
        self.wide = self.wide[:, :101].double().contiguous()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.net = shaken(nn.Linear(101, self.dim, dtype=torch.float64))
        self.table = self.table.double()


def affine():
    tables = [numbers(N, 300, seed=seed).double() for seed in (0, 1)]
    core = numbers(300, 300, seed=2).double()

    def score(heads, relations, tails):
        return ((heads[0] * relations[0]) @ core * tails[0]).sum(1)

    return AffineModel(score, Parts([tables[0]], [tables[1][:R]], [tables[0]]), sides=("tail",))


def double(model):
    """Products in float64 show what rounding to float32 hides."""
    return model.double()


MODELS = {
    "conve": conve,
    "module": Encoder,
    "odd module": Odd,
    "subclass": Derived,
    "inverses": lambda: kgfast.Reciprocal(Encoder()),
    "affine": affine,
    "rescal": lambda: double(kgfast.RESCAL.init(N, R, 64, seed=0)),
    "odd rescal": lambda: double(kgfast.RESCAL.init(N, R, 75, seed=0)),
    "odd rscf": lambda: double(kgfast.RSCF(kgfast.TransE.init(N, R, 101, seed=0), seed=0)),
    "odd conve": lambda: shaken(
        kgfast.ConvE.init(N, R, 75, embedding_height=5, channels=3, seed=0).double()
    ),
    "rscf": lambda: double(kgfast.RSCF(kgfast.RotatE.init(N, R, 100, seed=0), seed=0)),
    "med of rscf": lambda: double(
        kgfast.MED(kgfast.RSCF(kgfast.TransE.init(N, R, 200, seed=0), seed=0), [100, 200])
    ),
}
HEADS = torch.arange(90) % N
RELATIONS = torch.arange(90) % 2


def queries_of(model, anchors, relations, *sizes):
    parts, left = [], (anchors, relations)
    with torch.no_grad():
        model = model.eval() if isinstance(model, nn.Module) else model
        for rows in zip(*(ids.split(list(sizes)) for ids in left), strict=True):
            parts.append(evaluated.evaluated_queries(model, *rows, "tail", None))
    return torch.cat(parts)


@pytest.mark.parametrize("name", MODELS)
def test_queries_depend_on_nobody_beside_them(name):
    model, found = MODELS[name](), {}
    for count in (1, 2, 3):
        with threads(count):
            for sizes in ([90], [1] * 90, [3] * 30, [33, 57]):
                found[count, sizes[0]] = queries_of(model, HEADS, RELATIONS, *sizes)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    back = queries_of(model, HEADS[order], RELATIONS[order], 90)[order.argsort()]
    for key, queries in found.items():
        assert torch.equal(queries, back), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_have_equal_products(dtype):
    with torch.no_grad(), threads(1):
        for width, columns in itertools.product((5, 9, 16, 31, 75, 101, 200), (1, 5, 7, 9, 44, 64)):
            rows = numbers(1, width).to(dtype).expand(32, width).contiguous()
            for matrix in (
                numbers(width, columns, seed=1).to(dtype),
                numbers(columns, width, seed=1).to(dtype).T,
            ):
                found = evaluated.product(rows, matrix)
                assert torch.equal(found, found[:1].expand_as(found)), (width, columns)
                torch.testing.assert_close(found, rows @ matrix)


@pytest.mark.parametrize("name", ["conve", "module", "subclass"])
def test_ranks_predictions_and_facts_depend_on_no_batch(name):
    model = MODELS[name]()
    triples = torch.stack([HEADS, RELATIONS, HEADS.flip(0)], 1)
    found: dict[str, list] = {"ranks": [], "best": [], "facts": []}
    for count, size in ((1, 90), (2, 3), (2, 90)):
        with threads(count):
            ranks = kgfast.rank(model, triples, batch_size=size, sides=("tail",))
            best = kgfast.topk(model, heads=HEADS, relations=RELATIONS, k=3, batch_size=size)
            facts = kgfast.top_facts(model, k=40, heads=HEADS[:50], batch_size=size)
        found["ranks"].append(torch.stack([ranks.greater, ranks.equal]))
        found["best"].append(best.scores)
        found["facts"].append(facts.scores)
    alone = kgfast.topk(model, heads=HEADS[7:8], relations=RELATIONS[7:8], k=3).scores
    assert torch.equal(found["best"][0][7:8], alone)
    for same in found.values():
        assert all(torch.equal(it, same[0]) for it in same[1:])


def test_callers_in_several_threads_get_the_same_bits():
    model, found = conve().eval(), {}
    whole, broken = queries_of(model, HEADS, RELATIONS, 90), HEADS.clone()
    broken[70] = N
    with threads(2), pytest.raises(IndexError):  # of a worker
        queries_of(model, broken, RELATIONS, 90)

    def run(place):
        found[place] = queries_of(model, HEADS, RELATIONS, 90)

    with threads(2):
        callers = [threading.Thread(target=run, args=(place,)) for place in range(3)]
        for caller in callers:
            caller.start()
        torch.set_num_threads(3)  # sets MKL's threads in all threads
        for caller in callers:
            caller.join()
        assert torch.get_num_threads() == 3
    assert all(torch.equal(found[place], whole) for place in range(3))


@pytest.mark.parametrize("name", MODELS)
def test_tensors_of_inference_mode_are_served(name):
    expected = kgfast.topk(MODELS[name](), heads=HEADS, relations=RELATIONS, k=2)
    with threads(2), torch.inference_mode():
        found = kgfast.topk(MODELS[name](), heads=HEADS, relations=RELATIONS, k=2)
    assert torch.equal(found.scores, expected.scores)


class Chunked(Encoder):
    """Encoder that names the size of its chunks, and gets chunks of that size."""

    query_chunk: object = 7

    def queries(self, anchors, relations, side):
        self.sizes = [*getattr(self, "sizes", []), len(anchors)]
        return super().queries(anchors, relations, side)


def test_a_model_says_how_many_queries_it_makes_at_once():
    model = Chunked()
    queries_of(model, HEADS[:20], RELATIONS[:20], 20)
    assert model.sizes == [7, 7, 7]
    model.query_chunk, model.sizes = None, []
    queries_of(model, HEADS[:20], RELATIONS[:20], 20)
    assert model.sizes == [20]


def test_only_a_class_that_says_so_is_asked_by_several_threads():
    class Alone(kgfast.ConvE):
        def queries(self, *asked, **options):
            found.add(threading.get_ident())
            return super().queries(*asked, **options)

    class Parallel(Alone):
        parallel_queries = True

        def queries(self, *asked, **options):
            together.wait(60)
            return super().queries(*asked, **options)

    found: set[int] = set()
    together = threading.Barrier(2)
    for kind, count in ((Alone, 1), (Parallel, 2)):
        found.clear()
        with threads(2):
            model = kind.init(N, R, 8, embedding_height=2, seed=0)
            queries_of(model, HEADS[:64], RELATIONS[:64], 64)
        assert len(found) == count


def test_memory_that_a_model_uses_again_is_copied():
    class Reusing(Encoder):
        def queries(self, anchors, relations, side):
            made = super().queries(anchors, relations, side)
            self.memory = getattr(self, "memory", torch.empty_like(made))
            return self.memory.copy_(made)

    wanted = queries_of(Encoder(), HEADS, RELATIONS, 90)
    assert torch.equal(queries_of(Reusing(), HEADS, RELATIONS, 90), wanted)


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("frozen", [None, "entity", "relation"])
def test_gradients_of_rescal_are_those_of_its_equation(side, frozen):
    model = kgfast.RESCAL.init(7, 4, 3, seed=0).double()
    if frozen is not None:
        getattr(model, frozen).requires_grad_(False)
    anchors, relations = torch.tensor([5, 0, 5, 2, 6]), torch.tensor([3, 1, 1, 1, 0])
    slopes = numbers(5, 3).double()
    got = model.queries(anchors, relations, side)
    matrices = model.relation.view(4, 3, 3)[relations]
    want = torch.einsum(
        "bd,bde->be" if side == "tail" else "be,bde->bd", model.entity[anchors], matrices
    )
    assert torch.allclose(got, want, rtol=1e-12)
    leaves = [it for it in model.parameters() if it.requires_grad]
    pairs = (torch.autograd.grad((it * slopes).sum(), leaves) for it in (got, want))
    for one, other in zip(*pairs, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("relations", [2, 64])
def test_gradients_of_a_step_of_rescal_depend_on_no_number_of_threads(relations):
    generator = torch.Generator().manual_seed(0)
    highs = torch.tensor([N, relations, N])
    triples = (torch.rand(256, 3, generator=generator) * highs).long()

    def step(count):
        model = kgfast.RESCAL.init(N, relations, 200, seed=0)
        with threads(count):
            loss = kgfast.losses.cross_entropy(model, triples)
            loss = loss + kgfast.losses.regularizers.dura(model, triples)
            loss.backward()
        return [loss.detach(), model.entity.grad, model.relation.grad]

    alone = step(1)
    for count in (2, 3):
        assert all(torch.equal(*pair) for pair in zip(step(count), alone, strict=True))
