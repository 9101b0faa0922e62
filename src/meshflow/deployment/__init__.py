"""Conversion of traced models for other runtimes: flat lists of equations, pattern fusion and
lowering.
"""
