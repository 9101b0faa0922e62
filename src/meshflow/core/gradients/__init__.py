"""Gradient tapes, forward accumulators, Jacobians and custom gradients."""
