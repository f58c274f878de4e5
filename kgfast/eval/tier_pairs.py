"""Pairs of a ranking on the CPU, by the sweep that decided them."""

from dataclasses import dataclass

from torch import Tensor

from kgfast.kernels.cpu import tiers


@dataclass(frozen=True, repr=False)
class TierPairs:
    """Pairs of queries and candidates of one call, by the sweep that decided them.

    The int8 tier sweeps first. Float32 sweeps the pairs that the tier leaves open, and canonical
    scores decide the pairs that float32 leaves open (docs/explanation/tiers.md). Ranks do not
    depend on the sweep that decides. Equal queries are swept once.

    Attributes
    ----------
    total : int
        Pairs of distinct queries and candidates. With ``int8``, a pair counts once for each target
        of the query.
    swept : int
        Pairs that the int8 tier swept.
    decided : int
        Pairs that the int8 tier decided.
    canonical : int
        Canonical scores, one for each target of an open pair. Targets and known answers always have
        a canonical score; these are not counted.

    Examples
    --------
    >>> print(TierPairs(2000, 1500, 1200, 3))
    pairs     2,000
    int8      1,200  60.00% decided, of 1,500 swept
    float32     800  40.00% left
    canonical     3   0.15% left
    """

    total: int
    swept: int
    decided: int
    canonical: int

    @classmethod
    def of(cls, pairs: Tensor) -> "TierPairs | None":
        """Read counts of :func:`kgfast.kernels.cpu.tiers.counted_pairs`; None if there are none."""
        count = dict(zip(tiers.PAIRS, pairs.tolist(), strict=True))
        if not count["total"]:
            return None
        decided = count["swept"] - count["left"]
        return cls(count["total"], count["swept"], decided, count["canonical"])

    @property
    def float32(self) -> int:
        """Pairs that no tier decided."""
        return self.total - self.decided

    def as_dict(self) -> dict[str, int]:
        """Return all fields as plain values, such as for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        rows = [("float32", self.float32, "left"), ("canonical", self.canonical, "left")]
        if self.swept:
            rows.insert(0, ("int8", self.decided, f"decided, of {self.swept:,} swept"))
        width = len(f"{self.total:,}")
        lines = [
            f"{name:<9} {count:>{width},}  {count / self.total:>6.2%} {what}"
            for name, count, what in rows
        ]
        return "\n".join([f"{'pairs':<9} {self.total:>{width},}", *lines])
