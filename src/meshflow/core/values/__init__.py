"""What programs hold: dtypes, shapes, specs, tensors, and how other values become tensors."""
