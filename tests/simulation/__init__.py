"""Deterministic simulation of the distributed protocols; see docs/recipes/simulation.md."""

import importlib


def _load(name):
    return lambda: importlib.import_module(f"simulation.{name}").simulate


# By name, a function that returns the function that runs the schedule of a seed.
SCENARIOS = {name: _load(name) for name in ("parameter_servers", "launching")}
