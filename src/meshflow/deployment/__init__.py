"""Conversion of traced models for other runtimes: flat programs, pattern fusion and lowering."""
