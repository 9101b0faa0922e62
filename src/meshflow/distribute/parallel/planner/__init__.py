"""The planner: it finds meshes, rules and options with which a model fits and trains fast."""

from meshflow.distribute.parallel.planner import auto_plan as _automatic
from meshflow.distribute.parallel.planner import step_traffic as _theory
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.plans import Plan, plan
