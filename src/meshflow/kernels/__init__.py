"""CPU kernels: oneDNN behind JAX's own primitives, by XLA's foreign function interface.

`library` finds and loads the compiled handlers, `descriptors` describes a computation to them,
`lowerings` decides what they run. Without them everything is compiled by XLA alone.
"""

from __future__ import annotations

from meshflow.kernels.library import KernelsUnavailableError, status

__all__ = ["KernelsUnavailableError", "status"]
