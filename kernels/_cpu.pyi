from collections.abc import Sequence

View = tuple[int, int, int, Sequence[int], int]

def find_isa(name: str) -> str: ...
def rank_counts(
    isa: str,
    score: int,
    query: View,
    table: View,
    num_queries: int,
    num_candidates: int,
    num_features: int,
    term_ulps: int,
    targets: int,
    exclude_indptr: int,
    exclude_indices: int,
    bias: int,
    bias_exact: int,
    bias_max: float,
    bias_magnitude: float,
    candidate_ids: int,
    sorted_candidate_ids: int,
    nan_worst: bool,
    threads: int,
    counts: Sequence[int],
) -> tuple[int, int]: ...
def sweep_errors(
    isa: str,
    score: int,
    query: View,
    table: View,
    num_queries: int,
    num_candidates: int,
    num_features: int,
    term_ulps: int,
    targets: int,
    values: int,
    bounds: int,
) -> None: ...
def roof(isa: str, score: int, features: int, seconds: float) -> float: ...
