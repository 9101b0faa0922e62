"""Subclasses of `Variable` by users: classes that convert themselves, and classes that wrap another variable.

Libraries quantize or cast weights by variables that delegate to another variable and override its
reads. TensorFlow converts a variable to a tensor by `__tf_tensor__`, which calls
`_dense_var_to_tensor`, which calls `value`. A subclass may override each of them.
"""

from __future__ import annotations

from typing import Protocol

from meshflow.core.values.tensor import Tensor

_CONVERSIONS = frozenset(("__tf_tensor__", "_dense_var_to_tensor", "value"))


class _ValueHolder(Protocol):
    """Methods of a `Variable` that wrappers delegate."""

    def _write(self, value: Tensor) -> None: ...
    def _set(self, value: Tensor) -> None: ...
    def _train(self, value: Tensor) -> None: ...
    def _watch_on(self, tape: object) -> None: ...


class ConvertingVariable:
    """Methods of a subclass of `Variable` that overrides a conversion."""

    def _as_tensor(self) -> Tensor:
        tensor: Tensor = self.__tf_tensor__()  # type: ignore[attr-defined]
        return tensor


class WrappingVariable:
    """Methods of a subclass of `Variable` with instances that delegate to another variable, their `handle`."""

    @property
    def handle(self) -> _ValueHolder:
        """Return the variable that holds the value."""
        holder: _ValueHolder = self.__getattr__("handle")  # type: ignore[attr-defined]
        return holder

    def _write(self, value: Tensor) -> None:
        self.handle._write(value)

    def _set(self, value: Tensor) -> None:
        self.handle._set(value)

    def _train(self, value: Tensor) -> None:
        self.handle._train(value)

    def _watch_on(self, tape: object) -> None:
        self.handle._watch_on(tape)


def adapt_subclass(cls: type) -> None:
    """Let ops convert and write the instances of a new subclass of `Variable` by its methods."""
    defined = cls.__dict__
    if "_as_tensor" in defined:
        # A class of Meshflow. `value` calls it also if a subclass of it overrides the conversion.
        cls._read = defined["_as_tensor"]  # type: ignore[attr-defined]
        return
    if not _CONVERSIONS.isdisjoint(defined):
        _copy_methods(ConvertingVariable, cls)
    if "__getattr__" in defined:
        _copy_methods(WrappingVariable, cls)


def _copy_methods(source: type, target: type) -> None:
    for name, member in vars(source).items():
        is_own = callable(member) or isinstance(member, property)
        if is_own and name not in target.__dict__:
            setattr(target, name, member)
