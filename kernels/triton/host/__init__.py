"""What starts the kernels: views of tensors, launches, scratch, plans, bounds."""
