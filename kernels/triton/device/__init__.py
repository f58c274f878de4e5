"""The GPU's side: kernels and shared functions, without imports of the host's side."""
