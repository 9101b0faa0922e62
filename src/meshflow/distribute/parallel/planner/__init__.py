"""The planner: it finds meshes, rules and options with which a model fits and trains fast."""

from meshflow.distribute.parallel.planner import automatic as _automatic
from meshflow.distribute.parallel.planner import theory as _theory
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.planning import Plan, plan

__all__ = ["Hardware", "Plan", "plan"]
