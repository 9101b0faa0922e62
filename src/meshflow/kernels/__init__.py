"""CPU kernels: oneDNN and C++ code, called by XLA's foreign function interface.

`library` finds and loads the compiled handlers, `descriptors` describes a computation to them, and
`lowerings` decides which of JAX's primitives they compute. Without the handlers, XLA compiles all
computations.
"""

from __future__ import annotations

from meshflow.kernels.library import KernelsUnavailableError, status
