"""Merge the counts that count_one.py wrote."""

from pathlib import Path

import numpy as np
import torch

import kgfast
from kgfast.distributed import merge

known = kgfast.KnownTriples(np.load("known.npy"))
counts = [torch.load(path, weights_only=False) for path in Path("counts").glob("*.pt")]
print(merge(counts, known=known))
