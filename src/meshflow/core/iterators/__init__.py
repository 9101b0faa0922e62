"""Iterators in traced functions: captures before a call, and requests of running programs."""
