"""Objects of no known class, made of what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable

__all__ = ["CallableRestored", "Restored", "own_name", "put_child"]


# More places are no list's that somebody saved.
_LONGEST_LIST = 1 << 24


class Restored(Module):
    """An object that was saved: its attributes are those that were variables, objects or functions.

    Attributes:
      signatures: functions by name, which take tensors by name and return a dictionary of tensors.
      tensorflow_version: of the TensorFlow that saved it, or whose behaviour the Meshflow follows that did.
      tensorflow_git_version: the same more exactly.
    """

    signatures: Mapping[str, Any]
    tensorflow_version: str
    tensorflow_git_version: str
    _ordered: tuple[Variable, ...] | None = None

    def note_left_out(self, name: str, why: str) -> None:
        """Notes that a function is not there, for who asks for it.

        Args:
          name: its name.
          why: what of it could not be saved or loaded.
        """
        self.__dict__.setdefault("_left_out", {})[name] = why

    def __getattr__(self, name: str) -> Any:
        why = self.__dict__.get("_left_out", {}).get(name)
        reason = f": the function was left out, as {why}" if why else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{reason}")

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of the saved object, in its order."""
        return super().variables if self._ordered is None else self._ordered

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those that are trained."""
        return tuple(v for v in self.variables if v.trainable)


class CallableRestored(Restored):
    """One that was saved with a `__call__`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the saved object's `__call__`.

        Raises:
          TypeError: when that could not be loaded.
        """
        own = self.__dict__.get("__call__")
        if own is None:
            why = self.__dict__.get("_left_out", {}).get("__call__", "it could not be loaded")
            raise TypeError(
                f"This saved object is not callable: its __call__ was left out, as {why}"
            )
        return own(*args, **kwargs)


def own_name(name: str) -> str:
    """The name of an attribute, none of those that Python itself uses.

    Raises:
      KeyError: for those, but `__call__`.
    """
    if name.startswith("__") and name != "__call__":
        raise KeyError(name)
    return name


def put_child(owner: Any, name: str, child: Any) -> None:
    """Makes one object the part of another that it was.

    Args:
      owner: a `Restored` object, a list, or a dictionary.
      name: the part's name; in a list its place, before which there is None for what was not saved.
      child: the part.

    Raises:
      KeyError: for a place in a list that is none, as damaged files have.
    """
    if isinstance(owner, dict):
        owner[name] = child
    elif isinstance(owner, list):
        if not name.isdecimal() or int(name) > _LONGEST_LIST:
            raise KeyError(name)
        place = int(name)
        owner.extend([None] * (place + 1 - len(owner)))
        owner[place] = child
    elif isinstance(child, (Signed, Function)) or _is_free(owner, name):
        setattr(owner, name, child)


def _is_free(owner: Any, name: str) -> bool:
    """Whether an attribute of the name would hide none of the object's class; what is called is the instance's."""
    return name == "__call__" or not hasattr(type(owner), own_name(name))
