"""`tf.experimental.dtensor`: tensors that lie on a mesh of devices by a layout."""

from meshflow.dtensor import input, meshes, values
from meshflow.dtensor.input import *
from meshflow.dtensor.meshes import *
from meshflow.dtensor.values import *
from meshflow.placement.layout import MATCH, UNSHARDED, Layout
from meshflow.placement.mesh import Mesh

__all__ = sorted(
    [*input.__all__, *meshes.__all__, *values.__all__, "MATCH", "UNSHARDED", "Layout", "Mesh"]
)
