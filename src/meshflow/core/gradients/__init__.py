"""Tapes, forward accumulators, Jacobians, custom gradients."""
