"""`tf.xla.experimental`: compilation by XLA, which is the default of `tf.function`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshflow.core.functions.decorator import function
from meshflow.core.values.tensor import Tensor

__all__ = ["compile", "jit_scope"]


def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Any:
    """Compile a function and call it.

    Args:
      computation: The function.
      inputs: Its arguments.

    Returns:
      The result of the function; a single tensor is returned in a tuple.

    Example:
      >>> int(tf.xla.experimental.compile(lambda x: x + 1, [tf.constant(2)])[0])
      3
    """
    result = function(computation, jit_compile=True)(*(inputs or ()))
    return (result,) if isinstance(result, Tensor) else result


@contextlib.contextmanager
def jit_scope(
    compile_ops: bool | Callable[..., bool] = True, separate_compiled_gradients: bool = False
) -> Iterator[None]:
    """Run a block; XLA compiles every `tf.function`."""
    yield
