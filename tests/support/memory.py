"""Peak memory as the benchmarks measure it."""

from importlib.util import module_from_spec, spec_from_file_location

from support.paths import BENCHMARKS

_SPEC = spec_from_file_location("measure", BENCHMARKS / "lib" / "measure.py")
_MEASURE = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MEASURE)
PeakMemory = _MEASURE.PeakMemory
