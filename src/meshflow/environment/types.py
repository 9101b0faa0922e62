"""Type aliases that the package shares.

`DTypeLike` is defined in `meshflow.core.values.dtypes`, `ShapeLike` in `meshflow.core.values.shapes`, and `TensorLike` in
`meshflow.core.values.tensor`: a parameter of an op that is annotated `TensorLike` is an operand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import numpy as np

from meshflow.environment.jax_internals import jex_core

# An array in the memory of a device or of the host.
Array: TypeAlias = jax.Array | np.ndarray

# The parts of a traced program.
ClosedJaxpr: TypeAlias = jex_core.ClosedJaxpr
Jaxpr: TypeAlias = jex_core.Jaxpr
JaxprEqn: TypeAlias = jex_core.JaxprEqn
Literal: TypeAlias = jex_core.Literal
Primitive: TypeAlias = jex_core.Primitive
Var: TypeAlias = jex_core.Var

# A value in a jaxpr: a variable or a literal.
Atom: TypeAlias = Var | Literal

# A nested structure of dictionaries, lists, tuples and registered nodes. Python's type system cannot describe its leaves.
PyTree: TypeAlias = Any

# A value that `json.loads` returns. The alias is not recursive, because mypy would reject reads of nested values.
Json: TypeAlias = Any

# The configuration of a Keras object, the result of `get_config` and the argument of `from_config`.
Config: TypeAlias = dict[str, Any]

# The metrics of a batch or epoch by name, as `fit` passes them to callbacks: a mapping. The alias is `Any`, because type
# checkers infer the arguments of overriding methods from it.
Logs: TypeAlias = Any

if TYPE_CHECKING:
    # JAX's type of this name does not include lists.
    from numpy.typing import ArrayLike

    class NumpyValue(np.ndarray[Any, np.dtype[Any]]):
        """Value of a tensor: an array, or for rank 0 a NumPy scalar or a bytes object."""

        def __round__(self, ndigits: int | None = None) -> Any: ...
        def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
            """Decode the bytes object."""

else:
    from jax.typing import ArrayLike as ArrayLike

    NumpyValue = Any

# A path in a file system.
StrPath: TypeAlias = str | os.PathLike[str]

_Result = TypeVar("_Result")


def overridable(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Mark a method that subclasses override with other parameters, for type checkers.

    Example:
      >>> class Base:
      ...     @overridable
      ...     def call(self, inputs): ...
    """
    return method
