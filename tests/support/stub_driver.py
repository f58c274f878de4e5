"""A CUDA driver that launches nothing: Triton's own compiler and launcher, on CPU tensors.

Unlike compiling ahead of time it goes through the binder, the specialisation of real arguments and
the launcher in C; no result is computed.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from support.paths import ROOT

# Bytes of shared memory of a block: CUDA C++ programming guide, "Technical specifications".
SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
_SOURCE = Path(__file__).with_suffix(".c")
_CACHE = ROOT / "build" / "triton"  # compiled kernels, by their sources and Triton's version


def build(folder: Path, triton: Path) -> dict[str, str]:
    """Compile the driver with Triton's headers; return the environment that finds it."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("no C compiler: cc")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    headers = triton / "backends" / "nvidia" / "include"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}"]
    subprocess.run([compiler, *options, "-o", library, _SOURCE], check=True)
    (folder / "libcuda.so").unlink(missing_ok=True)
    (folder / "libcuda.so").symlink_to(library.name)
    paths = {"LD_LIBRARY_PATH": folder, "TRITON_LIBCUDA_PATH": folder, "TRITON_CACHE_DIR": _CACHE}
    return {name: str(path) for name, path in paths.items()}


class StubDriver:
    """Driver of this process for an architecture, which the environment of ``build`` names."""

    def __init__(self, arch: int) -> None:
        import triton
        from triton.backends.nvidia import driver as nvidia

        from kgfast.kernels.triton.host import launch

        os.environ["STUB_SHARED"] = str(SHARED[arch])
        path = Path(os.environ["TRITON_LIBCUDA_PATH"]) / "libcuda.so.1"
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._library.stub_launches.restype = ctypes.c_long

        class Driver(nvidia.CudaDriver):
            def __init__(self) -> None:
                self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher
                self.get_device_capability = lambda device=0: divmod(arch, 10)
                self.get_current_stream = lambda device=0: 0
                self.get_current_device = lambda: 0
                self.set_current_device = lambda device: None

            @staticmethod
            def is_active() -> bool:
                return True

        triton.runtime.driver.set_active(Driver())
        launch.architecture = lambda device: arch

    @property
    def launches(self) -> int:
        return int(self._library.stub_launches())
