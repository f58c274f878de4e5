"""Plain PyTorch in float64 and a fixed order: the specification. Short, obvious, slow."""
