"""Deterministic simulation of the distributed protocols; see docs/recipes/simulation.md."""
