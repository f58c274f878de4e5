from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from kgfast.kernels.cpu.views import Machine, Packed, Pointers, View

BadRows = tuple[int, int, int]
Memory = Tensor | int | None  # a tensor, or an address

class _Ids(Protocol):
    @property
    def indptr(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class AboveResult:
    @property
    def count(self) -> int: ...
    def write(self, machine: Machine, indptr: Memory, ids: Memory, scores: Memory) -> None: ...

def find_isa(name: str) -> str: ...
def find_tiers(isa: str) -> int: ...
def rank_counts(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    targets: Memory,
    target_scores: Memory,
    sorted_ids: Memory,
    lists: _Ids | None,
    known: _Ids | None,
    nan_worst: bool,
    counts: Memory,
    pairs: Memory,
    recorded: Memory = None,
) -> BadRows: ...
def topk(
    machine: Machine,
    operands: Pointers,
    width: int,
    k: int,
    lists: _Ids | None,
    known: _Ids | None,
    nan_worst: bool,
    scores: Memory,
    ids: Memory,
) -> BadRows: ...
def above(
    machine: Machine,
    operands: Pointers,
    width: int,
    lowest: Memory,
    known: _Ids | None,
    most: int,
) -> tuple[BadRows, AboveResult]: ...
def panel_shape(isa: str, score: int) -> tuple[int, int]: ...
def int8_bytes(features: int) -> int: ...
def byte_row_bytes(features: int, planes: int) -> int: ...
def pack(machine: Machine, operands: Pointers, panels: Packed) -> BadRows: ...
def cos_sin(machine: Machine, phases: Memory, count: int, cosine: Memory, sine: Memory) -> None: ...
def scores(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    index: Memory,
    per_query: int,
    out: Memory,
) -> None: ...
def backward(
    machine: Machine,
    operands: Pointers,
    widths: Sequence[int],
    grad: Memory,
    strides: Sequence[int],
    of_query: View | None,
    of_table: View | None,
    of_factor: View | None,
    index: Memory = None,
    per_query: int = -1,
    groups: Any = None,
    adds_to_rows: bool = False,
) -> None: ...
def loss_pass(
    machine: Machine,
    walk: int,
    scores: Memory,
    rows: int,
    columns: int,
    a: Memory,
    b: Memory,
    c: Memory,
    shift: Memory,
    scale: Memory,
    share: Memory,
    constant: float,
) -> None: ...
def row_adam(
    threads: int,
    table: Memory,
    first_moment: Memory,
    second_moment: Memory,
    ids: Memory,
    gradients: Memory,
    count: int,
    width: int,
    first_share: float,
    second_share: float,
    step_size: float,
    root_scale: float,
    eps: float,
    weight_decay: float,
) -> None: ...
def adagrad(
    machine: Machine,
    table: Memory,
    sum: Memory,
    ids: Memory,
    gradient: Memory,
    count: int,
    width: int,
    rate: float,
    eps: float,
    weight_decay: float,
) -> None: ...
