"""Sums over the paths of a graph: any number of paths, in the memory of a few thousand.

A network whose messages pass along paths i -> j -> k -> p of three edges (SGMP, GT-SSL, DimeNet)
has many more paths than edges, so activations of all paths do not fit in memory. Here paths have
numbers and are made in chunks; the activations of a chunk are freed before the next chunk begins,
in the backward too. See docs/how-to/paths.md.
"""

from kgfast.extras.paths.enumeration import Paths
from kgfast.extras.paths.geometry import angle, torsion
from kgfast.extras.paths.sums import path_sum

__all__ = ["Paths", "angle", "path_sum", "torsion"]
