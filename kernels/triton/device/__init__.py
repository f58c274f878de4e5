"""What runs on a GPU: kernels and the functions they share. Imports nothing of the host's."""
