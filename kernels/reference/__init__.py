"""Plain PyTorch in float64 and a fixed order: the specification, short, obvious and slow."""
