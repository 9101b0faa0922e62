"""Meshes and layouts, as used by strategies, DTensor and models that are sharded over devices."""

from meshflow.placement.layout import MATCH, UNSHARDED, Layout
from meshflow.placement.mesh import Mesh, MeshDimension
