"""Memory for large tables, in files that are mapped into memory."""

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


class MappedRoom:
    """Maker of float32 tensors of zeros in files of a folder.

    A file loses its name at once, so that its disk space is free when the process ends in any way:
    checkpoints store what a run needs. The system writes pages back and forgets pages when it needs
    memory. A step of a row optimizer touches only the pages of its rows.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __call__(self, shape: Sequence[int]) -> Tensor:
        count = math.prod(shape)
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(suffix=".rows", dir=self.folder)
        try:
            if count:
                # Disk space is reserved, not only promised: a page without a place on the disk ends
                # the process.
                _reserve(descriptor, 4 * count)
            flat = torch.from_file(name, shared=True, size=count, dtype=torch.float32, device="cpu")
        except OSError as error:
            raise OSError(
                error.errno, f"no room for a table of {4 * count:,} bytes: {error.strerror}", name
            ) from None
        finally:
            os.close(descriptor)
            os.unlink(name)
        return flat.view(*shape)


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 20)
    with open(descriptor, "wb", closefd=False) as file:  # macOS
        for start in range(0, size, len(zeros)):
            file.write(zeros[: size - start])
