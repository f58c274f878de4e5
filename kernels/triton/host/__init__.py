"""The host's side: views of tensors, launches, scratch, plans, bounds."""
