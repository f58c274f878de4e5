"""Numerical heart of kgfast: scores, and the backends that sweep them over a table.

The package is installed as ``kgfast.kernels``, and imports nothing of the rest of ``kgfast``.
"""
