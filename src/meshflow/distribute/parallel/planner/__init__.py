"""The planner: how a model is divided over devices so that it fits and is fast."""

from meshflow.distribute.parallel.planner import automatic as _automatic
from meshflow.distribute.parallel.planner import theory as _theory
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.planning import Plan, plan

__all__ = ["Hardware", "Plan", "plan"]
