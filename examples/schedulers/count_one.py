"""Count the part of the entities that Slurm names; the argument is the number of parts.

    array=$(sbatch --parsable --array=0-7 --wrap 'python count_one.py 8')
    sbatch --dependency=afterok:$array --wrap 'python merge_all.py'

`sbatch --array=7` counts part 7 again.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch

import kgfast
from kgfast.distributed import count_range

part, parts = int(os.environ["SLURM_ARRAY_TASK_ID"]), int(sys.argv[1])
entity = np.load("entity.npy", mmap_mode="r")
model = kgfast.RotatE(entity, np.load("relation.npy"))
known = kgfast.KnownTriples(np.load("known.npy"))
start, stop = (len(entity) * i // parts for i in (part, part + 1))
counts = count_range(model, np.load("triples.npy"), start, stop, known=known)
Path("counts").mkdir(exist_ok=True)
torch.save(counts, f"counts/{part}.pt")
