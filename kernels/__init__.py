"""Numerical heart of kgfast: scores, and the backends that sweep them over a table.

Installed as ``kgfast.kernels``. Nothing here imports the rest of ``kgfast``.
"""
