"""Pairs of a ranking on the CPU, by the sweep that decided them."""

from dataclasses import dataclass

from torch import Tensor

from kgfast.kernels.cpu import tiers

_ORDER = ("linear", "int8")  # tiers in the order of their sweeps


@dataclass(frozen=True, repr=False)
class TierPairs:
    """Pairs of queries and candidates of one call, by the sweep that decided them.

    Tiers sweep first. Float32 sweeps the pairs that tiers leave open, and canonical scores decide
    the pairs that float32 leaves open (docs/explanation/tiers.md). Ranks do not depend
    on the sweep that decides. Equal queries are swept once.

    Attributes
    ----------
    total : int
        Pairs of distinct queries and candidates. With ``int8``, a pair counts once for each target
        of the query.
    swept : dict of str to int
        Pairs that each tier swept; tiers without pairs are left out.
    decided : dict of str to int
        Pairs that each of these tiers decided.
    float32 : int
        Pairs that no tier decided.
    canonical : int
        Canonical scores, one for each target of an open pair. Targets and known answers always have
        a canonical score; these are not counted.

    Examples
    --------
    >>> print(TierPairs(2000, {"linear": 1500}, {"linear": 1200}, 800, 3))
    pairs     2,000
    linear    1,200  60.00% decided, of 1,500 swept
    float32     800  40.00% left
    canonical     3   0.15% left
    """

    total: int
    swept: dict[str, int]
    decided: dict[str, int]
    float32: int
    canonical: int

    @classmethod
    def of(cls, pairs: Tensor) -> "TierPairs | None":
        """Read counts of :func:`kgfast.kernels.cpu.tiers.counted_pairs`; None if there are none."""
        columns = [dict(zip(("all", *tiers.TIERS), it, strict=False)) for it in pairs.T.tolist()]
        swept, decided, _, canonical = columns
        total = swept["all"]
        if not total:
            return None
        served = [name for name in _ORDER if swept[name]]
        decided = {name: decided[name] for name in served}
        own = {name: swept[name] for name in served}
        return cls(total, own, decided, total - sum(decided.values()), canonical["all"])

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain values, such as for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        rows = [
            *(
                (name, count, f"decided, of {self.swept[name]:,} swept")
                for name, count in self.decided.items()
            ),
            ("float32", self.float32, "left"),
            ("canonical", self.canonical, "left"),
        ]
        width = len(f"{self.total:,}")
        lines = [
            f"{name:<9} {count:>{width},}  {count / self.total:>6.2%} {what}"
            for name, count, what in rows
        ]
        return "\n".join([f"{'pairs':<9} {self.total:>{width},}", *lines])
