"""`tf.lite.experimental.authoring`: functions are converted while they are written, to see early what cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.lite.converter import TFLiteConverter
from meshflow.lite.options import TargetSpec

__all__ = ["CompatibilityError", "compatible"]


class CompatibilityError(Exception):
    """A function cannot be converted for LiteRT."""


class _Compatible:
    """A `tf.function` that is converted whenever it is called for other tensors than before."""

    def __init__(
        self,
        target: Any,
        converter_target_spec: TargetSpec | None = None,
        converter_allow_custom_ops: bool | None = None,
        raise_exception: bool = False,
    ) -> None:
        functools.update_wrapper(self, target)
        self._target, self._spec, self._raises = target, converter_target_spec, raise_exception
        self._custom = bool(converter_allow_custom_ops)
        # What was converted, and what was said of it: also by the function of an object, for all objects.
        self._seen: list[Any] = []
        self._log: list[str] = []

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function of an object."""
        if instance is None:
            return self
        target = self._target.__get__(instance, owner)
        bound = _Compatible(target, self._spec, self._custom, self._raises)
        bound._seen, bound._log = self._seen, self._log
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives, after it was converted.

        Raises:
          CompatibilityError: when it cannot be and that was asked for.
        """
        self._check(self._target.get_concrete_function(*args, **kwargs))
        return self._target(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """The traced function, after it was converted."""
        concrete = self._target.get_concrete_function(*args, **kwargs)
        self._check(concrete)
        return concrete

    def get_compatibility_log(self) -> list[str]:
        """What could not be converted so far.

        Raises:
          RuntimeError: before the first call.
        """
        if not self._seen:
            raise RuntimeError("target compatibility isn't verified yet: call the function first.")
        return self._log

    def _check(self, concrete: Any) -> None:
        if any(known is concrete for known in self._seen):
            return
        self._seen.append(concrete)
        converter = TFLiteConverter.from_concrete_functions([concrete], self._target)
        if self._spec is not None:
            converter.target_spec = self._spec
        converter.allow_custom_ops = self._custom
        try:
            converter.convert()
        except UnimplementedError as error:
            message = f"COMPATIBILITY ERROR: {error}"
            self._log.append(message)
            print(message)
            if self._raises:
                raise CompatibilityError(message) from error


@overload
def compatible(
    target: None = None, converter_target_spec: TargetSpec | None = None, **kwargs: Any
) -> Callable[[Callable[..., Any]], _Compatible]: ...


@overload
def compatible(
    target: Callable[..., Any], converter_target_spec: TargetSpec | None = None, **kwargs: Any
) -> _Compatible: ...


def compatible(
    target: Callable[..., Any] | None = None,
    converter_target_spec: TargetSpec | None = None,
    **kwargs: Any,
) -> Callable[[Callable[..., Any]], _Compatible] | _Compatible:
    """Checks that a function can be converted for LiteRT when it is called, and prints what cannot.

    Args:
      target: a `tf.function`; without it, a decorator is returned.
      converter_target_spec: a `tf.lite.TargetSpec`.
      **kwargs: `raise_exception`: whether to raise a `CompatibilityError`, too; default False.
        `converter_allow_custom_ops`: accepted: there are none.

    Example:
      >>> import meshflow as tf
      >>> @tf.lite.experimental.authoring.compatible
      ... @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
      ... def factorials(x):
      ...     return tf.math.lgamma(x)
      >>> _ = factorials([2.0, 1.0])  # doctest: +SKIP
      COMPATIBILITY ERROR: tf.lite: lgamma cannot be converted ...
      >>> factorials.get_compatibility_log()  # doctest: +SKIP
      ['COMPATIBILITY ERROR: ...']
    """
    unknown = sorted(set(kwargs) - {"raise_exception", "converter_allow_custom_ops"})
    if unknown:
        raise TypeError(
            f"compatible() takes raise_exception and converter_allow_custom_ops besides, got {unknown}."
        )

    def wrapped(function: Callable[..., Any]) -> _Compatible:
        if not isinstance(function, Function):
            raise TypeError(f"compatible() takes a tf.function, got {function!r}.")
        return _Compatible(function, converter_target_spec, **kwargs)

    return wrapped if target is None else wrapped(target)
