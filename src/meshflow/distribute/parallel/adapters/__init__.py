"""Adapters that translate the configuration of other systems into a `MeshStrategy`."""

from meshflow.distribute.parallel.adapters.deepspeed import DeepSpeedSettings, from_deepspeed
from meshflow.distribute.parallel.adapters.mesh_tensorflow import from_mesh_tensorflow
