"""Entities in files, whose blocks are copied to a real GPU: the integers of the CPU."""

import torch

import kgfast
from kgfast import tables
from support.streamed import KNOWN, SMALL, TRIPLES, rotate, same


def test_blocks_that_are_copied_rank_as_on_the_cpu(tmp_path):
    model, _ = rotate(tmp_path)
    relation = model.relation.detach().cuda()
    stored = kgfast.RotatE(tables.open(tmp_path / "e.npy", device="cuda"), relation)
    for ids in (None, [3, 50, 7], torch.arange(5).repeat(len(TRIPLES), 1)):
        options = {"known": KNOWN, "candidate_ids": ids}
        found = kgfast.rank(stored, TRIPLES, max_memory=SMALL, **options)
        same(found, kgfast.rank(model, TRIPLES, **options))
        asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 3, "pad": True}
        top = kgfast.topk(stored, max_memory=SMALL, **asked, **options)
        assert torch.equal(top.ids.cpu(), kgfast.topk(model, **asked, **options).ids)


def test_many_blocks_of_many_bytes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200_000, 128, generator=generator).half()
    (tmp_path / "e.bin").write_bytes(rows.view(torch.uint8).numpy().tobytes())
    relation = torch.randn(3, 64, generator=generator)
    triples = torch.randint(200_000, (300, 3), generator=generator) % torch.tensor(
        [200_000, 3, 200_000]
    )
    table = tables.open(tmp_path / "e.bin", columns=128, dtype=torch.float16, device="cuda")
    found = kgfast.rank(kgfast.RotatE(table, relation.cuda()), triples, max_memory="16MiB")
    same(found, kgfast.rank(kgfast.RotatE(rows, relation), triples))
