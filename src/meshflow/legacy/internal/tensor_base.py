"""`tf.__internal__.types.Tensor`: the base class of tensors and of variables."""

from __future__ import annotations

from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable


class _TensorBaseType(type):
    """Type of classes that count tensors and variables as instances of `TensorBase`."""

    def __instancecheck__(cls, instance: object) -> bool:
        is_native = cls is TensorBase and isinstance(instance, Tensor | Variable)
        return is_native or super().__instancecheck__(instance)


class TensorBase(metaclass=_TensorBaseType):
    """Base class of tensors and variables, from which libraries derive variables that wrap another one.

    Example:
      >>> base = tf.__internal__.types.Tensor
      >>> isinstance(tf.Variable(1.0), base), isinstance(1.0, base)
      (True, False)
      >>> class Wrapper(tf.Variable, base):
      ...     pass
      >>> isinstance(Wrapper(1.0), tf.Tensor)
      False
    """
