"""`tf.lite.experimental.authoring`: checks during development that a function can be converted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.lite.converter import TFLiteConverter
from meshflow.lite.options import TargetSpec

__all__ = ["CompatibilityError", "compatible"]


class CompatibilityError(Exception):
    """Error of a function that cannot be converted for LiteRT."""


class _CheckedFunction:
    """A `tf.function` that is converted, to check it, at the first call of each signature."""

    def __init__(
        self,
        target: Function,
        converter_target_spec: TargetSpec | None = None,
        converter_allow_custom_ops: bool | None = None,
        raise_exception: bool = False,
    ) -> None:
        functools.update_wrapper(self, target)
        self._target, self._spec, self._raises = target, converter_target_spec, raise_exception
        self._allow_custom_ops = bool(converter_allow_custom_ops)
        # Methods bound to different objects share the set of checked functions and the log.
        self.checked_functions: list[ConcreteFunction] = []
        self.messages: list[str] = []

    def __get__(self, instance: object, owner: type | None = None) -> _CheckedFunction:
        """Bind the function to an object."""
        if instance is None:
            return self
        target = self._target.__get__(instance, owner)
        bound = _CheckedFunction(target, self._spec, self._allow_custom_ops, self._raises)
        bound.checked_functions, bound.messages = self.checked_functions, self.messages
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Convert the function for the signature of the arguments, and call it.

        Raises:
          CompatibilityError: if it cannot be converted and `raise_exception` is true.
        """
        self._check_compatibility(self._target.get_concrete_function(*args, **kwargs))
        return self._target(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Trace the function and convert the trace."""
        concrete: ConcreteFunction = self._target.get_concrete_function(*args, **kwargs)
        self._check_compatibility(concrete)
        return concrete

    def get_compatibility_log(self) -> list[str]:
        """Return the messages of failed conversions.

        Raises:
          RuntimeError: before the first call.
        """
        if not self.checked_functions:
            raise RuntimeError("target compatibility isn't verified yet: call the function first.")
        return self.messages

    def _check_compatibility(self, concrete: ConcreteFunction) -> None:
        if any(checked is concrete for checked in self.checked_functions):
            return
        self.checked_functions.append(concrete)
        converter = TFLiteConverter.from_concrete_functions([concrete], self._target)
        if self._spec is not None:
            converter.target_spec = self._spec
        converter.allow_custom_ops = self._allow_custom_ops
        try:
            converter.convert()
        except UnimplementedError as error:
            message = f"COMPATIBILITY ERROR: {error}"
            self.messages.append(message)
            print(message)
            if self._raises:
                raise CompatibilityError(message) from error


@overload
def compatible(
    target: None = None, converter_target_spec: TargetSpec | None = None, **kwargs: Any
) -> Callable[[Callable[..., Any]], _CheckedFunction]: ...


@overload
def compatible(
    target: Callable[..., Any], converter_target_spec: TargetSpec | None = None, **kwargs: Any
) -> _CheckedFunction: ...


def compatible(
    target: Callable[..., Any] | None = None,
    converter_target_spec: TargetSpec | None = None,
    **kwargs: Any,
) -> Callable[[Callable[..., Any]], _CheckedFunction] | _CheckedFunction:
    """Check at each call that a function can be converted for LiteRT, and print the problems.

    Args:
      target: a `tf.function`; if None, a decorator is returned.
      converter_target_spec: a `tf.lite.TargetSpec`.
      **kwargs: `raise_exception`: whether to raise a `CompatibilityError`; default False.
        `converter_allow_custom_ops`: ignored, because no conversion uses custom operators.

    Example:
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
            f"compatible() takes the options raise_exception and converter_allow_custom_ops, got {unknown}."
        )

    def wrap(function: Callable[..., Any]) -> _CheckedFunction:
        if not isinstance(function, Function):
            raise TypeError(f"compatible() takes a tf.function, got {function!r}.")
        return _CheckedFunction(function, converter_target_spec, **kwargs)

    return wrap if target is None else wrap(target)
