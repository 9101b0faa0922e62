"""Public names of this package in `tf.distribute`.

Importing this module also imports the planner, which registers itself in `strategy.planners` for
`plan="auto"`.
"""

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
