"""What `tf.distribute` shows of this package, together, as planners put themselves where strategies find them."""

from meshflow.distribute.parallel.adapters import from_deepspeed, from_mesh_tensorflow
from meshflow.distribute.parallel.options import ParallelOptions, Pipeline
from meshflow.distribute.parallel.planner import Hardware, Plan, plan
from meshflow.distribute.parallel.strategy import MeshStrategy

__all__ = [
    "Hardware",
    "MeshStrategy",
    "ParallelOptions",
    "Pipeline",
    "Plan",
    "from_deepspeed",
    "from_mesh_tensorflow",
    "plan",
]
