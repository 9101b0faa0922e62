"""Objects of no known class, made of what was saved."""

from __future__ import annotations

from typing import Any

from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable

__all__ = ["Restored", "own_name", "put_child"]


class Restored(Module):
    """An object that was saved: its attributes are those that were variables, objects or functions.

    Attributes:
      signatures: functions by name, which take tensors by name and return a dictionary of tensors.
    """

    signatures: dict[str, Any]
    _ordered: tuple[Variable, ...] | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the saved object, in its order."""
        return super().variables if self._ordered is None else self._ordered

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those that are trained."""
        return tuple(v for v in self.variables if v.trainable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the saved object's `__call__`."""
        own = self.__dict__.get("_call")
        if own is None:
            raise TypeError(
                "This saved object is not callable: it was saved without a function `__call__`."
            )
        return own(*args, **kwargs)


def own_name(name: str) -> str:
    """The name of an attribute, none of those that Python itself uses."""
    if name.startswith("__"):
        raise KeyError(name)
    return name


def put_child(owner: Any, name: str, child: Any) -> None:
    """Makes one object the part of another that it was.

    Args:
      owner: a `Restored` object, a list, or a dictionary.
      name: the part's name; places in lists come in their order.
      child: the part.
    """
    if isinstance(owner, dict):
        owner[name] = child
    elif isinstance(owner, list):
        owner.append(child)
    elif not hasattr(type(owner), own_name(name)):
        setattr(owner, name, child)
