"""`tf.experimental.dtensor`: tensors on a mesh of devices, sharded by a layout."""

from meshflow.dtensor import drawing, explanation, input, meshes, saving, values
from meshflow.dtensor.drawing import *
from meshflow.dtensor.explanation import *
from meshflow.dtensor.input import *
from meshflow.dtensor.meshes import *
from meshflow.dtensor.saving import *
from meshflow.dtensor.values import *
from meshflow.placement.layout import MATCH, UNSHARDED, Layout
from meshflow.placement.mesh import Mesh

_MODULES = (drawing, explanation, input, meshes, saving, values)
__all__ = sorted(
    [
        *(name for part in _MODULES for name in part.__all__),
        *("MATCH", "UNSHARDED", "Layout", "Mesh"),
    ]
)
