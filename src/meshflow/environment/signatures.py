"""Signatures of classes that define `__new__`."""

from __future__ import annotations

import inspect


class ConstructorSignature:
    """Value of `__signature__` for classes with `__new__`: the signature of `__init__`.

    Without it, `help` and `inspect.signature` describe the `__new__` of a base class.

    Example:
      >>> import inspect
      >>> list(inspect.signature(tf.keras.layers.Layer).parameters)
      ['trainable', 'name', 'dtype', 'dynamic', 'kwargs']
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # Instances have the signature of `__call__`.
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=[*signature.parameters.values()][1:])
