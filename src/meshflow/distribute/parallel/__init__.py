"""Models larger than a device: one strategy over a mesh, with its rules and options."""

from meshflow.distribute.parallel.options import ParallelOptions, Pipeline
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.replicas.shares import Shares, current_shares

__all__ = ["MeshStrategy", "ParallelOptions", "Pipeline", "Shares", "current_shares"]
