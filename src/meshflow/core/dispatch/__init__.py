"""Execution of ops: operand conversion, constant folding, shape probing and composite tensors."""
