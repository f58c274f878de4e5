"""Losses and gradients of open_clip's own SigLipLoss, by a Python that has open_clip_torch.

Run as a script, of a folder with ``given.json``, it writes ``found.json``. It imports nothing of
this repository: that Python need not have kgfast.
"""

import json
import multiprocessing
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from open_clip.loss import SigLipLoss


def main(folder: Path) -> None:
    given = json.loads((folder / "given.json").read_text())
    found = {}
    context = multiprocessing.get_context("fork")  # loading open_clip takes longer than the losses
    for world, how in given["rings"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with context.Pool(world) as pool:
            asked = [(rank, world, given, how, port) for rank in range(world)]
            found[f"{world} {how}"] = pool.starmap(of_process, asked, chunksize=1)
    found["1"] = [of_process(0, 1, given, None, None)]
    (folder / "found.json").write_text(json.dumps(found))


def of_process(rank: int, world: int, given: Any, how: str | None, port: int | None) -> Any:
    """Return loss and gradients of one process, whose pairs are its share of all."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    rows = (torch.tensor(given[name]).chunk(world)[rank] for name in ("image", "text"))
    numbers = (torch.tensor(given[name]) for name in ("scale", "bias"))
    leaves = [it.clone().requires_grad_() for it in (*rows, *numbers)]
    loss = SigLipLoss(rank=rank, world_size=world, dist_impl=how)
    found = loss(*leaves, output_dict=True)["contrastive_loss"]
    (found * given["weights"][rank]).backward()
    result = [found.item(), *(it.grad.tolist() for it in leaves)]
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]))
