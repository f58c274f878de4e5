"""The GPU's side: kernels and the functions they share. Imports nothing of the host's."""
