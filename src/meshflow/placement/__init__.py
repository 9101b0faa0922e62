"""Meshes and layouts: one vocabulary for strategies, DTensor and sharded models."""

from meshflow.placement.layout import MATCH, UNSHARDED, Layout
from meshflow.placement.mesh import Mesh, MeshDimension

__all__ = ["MATCH", "UNSHARDED", "Layout", "Mesh", "MeshDimension"]
