"""Sums over the paths of a graph, of any number of them, in the memory of a few thousand.

A network whose messages pass along paths i -> j -> k -> p of three edges (SGMP, GT-SSL, DimeNet's
kin) has many more paths than edges: activations of every path at once do not fit. Here paths are
numbered, made in chunks, and a chunk's activations are gone before the next one begins, in the
backward too. docs/paths.md says more.
"""

from kgfast.extras.paths.enumeration import Paths
from kgfast.extras.paths.geometry import angle, distance, torsion
from kgfast.extras.paths.sums import path_sum, take

__all__ = ["Paths", "angle", "distance", "path_sum", "take", "torsion"]
