from collections.abc import Sequence

from kgfast.kernels.cpu.views import Pointers, View

Machine = tuple[str, int, int]
Gradients = tuple[View | None, View | None, View | None]

def find_isa(name: str) -> str: ...
def find_tiers(isa: str) -> int: ...
def tier_engines() -> list[tuple[int, str, str, bool, bool]]: ...
def has_score(isa: str, score: int) -> bool: ...
def roof(isa: str, score: int, features: int, seconds: float) -> float: ...
def rank_counts(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    targets: tuple[int, int, int],
    known: tuple[int, int] | None,
    nan_worst: bool,
    counts: tuple[int, int],
) -> tuple[int, int, int]: ...
def int8_bytes(rows: int, width: int) -> int: ...
def pack_int8(
    machine: Machine, operands: Pointers, width: int, panels: int
) -> tuple[int, int, int]: ...
def sweep_errors(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    targets: int,
    values: int,
    bounds: int,
) -> None: ...
def byte_row_bytes(rows: int, width: int, planes: int) -> int: ...
def pack_bytes(
    machine: Machine, operands: Pointers, width: int, scale: float, panels: int
) -> None: ...
def byte_errors(machine: Machine, operands: Pointers, values: int, bounds: int) -> None: ...
def topk(
    machine: Machine,
    operands: Pointers,
    width: int,
    k: int,
    known: tuple[int, int] | None,
    nan_worst: bool,
    best: tuple[int, int],
) -> tuple[int, int, int]: ...
def topk_of_ids(
    machine: Machine,
    operands: Pointers,
    width: int,
    k: int,
    composition: tuple[int, bool, bool, float, View, View],
    ids: tuple[list[int], list[int]],
    best: tuple[int, int],
) -> tuple[int, int, int]: ...
def above(
    machine: Machine,
    operands: Pointers,
    width: int,
    lowest: int,
    known: tuple[int, int] | None,
    most: int,
) -> tuple[tuple[int, int, int], int, object]: ...
def write_above(machine: Machine, results: object, out: tuple[int, int, int]) -> None: ...
def panel_shape(isa: str, score: int) -> tuple[int, int]: ...
def pack_panels(
    machine: Machine, operands: Pointers, width: int, panels: int, norms: int
) -> tuple[int, int, int]: ...
def list_counts(
    machine: Machine,
    operands: Pointers,
    width: int,
    lists: tuple[int, int],
    known: tuple[int, int] | None,
    nan_worst: bool,
    targets_and_counts: tuple[int, int],
) -> tuple[int, int, int]: ...
def list_topk(
    machine: Machine,
    operands: Pointers,
    width: int,
    lists: tuple[int, int],
    known: tuple[int, int] | None,
    nan_worst: bool,
    best: tuple[int, int, int],
) -> tuple[int, int, int]: ...
def cos_sin(machine: Machine, phases: int, count: int, cosine: int, sine: int) -> None: ...
def scores(
    machine: Machine,
    operands: Pointers,
    crops: tuple[Sequence[int], Sequence[int]],
    index: tuple[int, int] | None,
    out: int,
) -> None: ...
def pairwise_backward(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    grad: tuple[int, ...],
    gradients: Gradients,
    adds_to_rows: bool,
) -> None: ...
def indexed_backward(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    grad: tuple[int, ...],
    gradients: Gradients,
    index: tuple[int, int],
    groups: tuple[int, int, int, int, bool] | None,
) -> None: ...
def loss_pass(
    machine: Machine,
    walk: int,
    scores: tuple[int, ...],
    sums: Sequence[int],
    factors: Sequence[int],
    constant: float,
) -> None: ...
def adagrad(
    machine: Machine, tables: Sequence[int], rows: tuple[int, ...], rates: Sequence[float]
) -> None: ...
def row_adam(
    threads: int,
    tables: Sequence[int],
    rows: tuple[int, ...],
    betas: Sequence[float],
    rates: Sequence[float],
) -> None: ...
