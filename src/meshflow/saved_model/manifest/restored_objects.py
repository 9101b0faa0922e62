"""Classes of loaded objects, which replace the unknown classes of the saved objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.checkpoint.object_graph import Trackable
from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable

# A larger index in a list is only possible in a damaged file.
_MAX_LIST_INDEX = 1 << 24


class RestoredObject(Module):
    """Loaded object.

    Its attributes are the attributes of the saved object that were variables, objects or functions.

    Attributes:
      signatures: Functions by name, which take tensors by name and return a dictionary of tensors.
      tensorflow_version: Version of the TensorFlow that saved the object, or that the saving
        Meshflow corresponds to.
      tensorflow_git_version: Git version of the same.
    """

    signatures: Mapping[str, Any]
    tensorflow_version: str
    tensorflow_git_version: str
    _ordered_variables: tuple[Variable, ...] | None = None

    def record_omission(self, name: str, reason: str) -> None:
        """Record why a function is missing, for the error of accessing it.

        Args:
          name: Name of the function.
          reason: Reason for which it could not be saved or loaded.
        """
        self.__dict__.setdefault("_left_out", {})[name] = reason

    def __getattr__(self, name: str) -> Any:
        omission = self.__dict__.get("_left_out", {}).get(name)
        suffix = f": the function was left out, as {omission}" if omission else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{suffix}")

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return the variables of the saved object, in its order."""
        return super().variables if self._ordered_variables is None else self._ordered_variables

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return the trainable variables."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Return the other variables."""
        return tuple(v for v in self.variables if not v.trainable)


class CallableRestoredObject(RestoredObject):
    """Loaded object that was saved with a `__call__`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the `__call__` of the saved object.

        Raises:
          TypeError: If it could not be loaded.
        """
        function = self.__dict__.get("__call__")
        if function is None:
            reason = self.__dict__.get("_left_out", {}).get("__call__", "it could not be loaded")
            raise TypeError(
                f"This saved object is not callable: its __call__ was left out, as {reason}"
            )
        return function(*args, **kwargs)


def check_attribute_name(name: str) -> str:
    """Return the name of an attribute after checking that it is not one of Python's special names.

    Raises:
      KeyError: If it is a special name other than `__call__`.
    """
    if name.startswith("__") and name != "__call__":
        raise KeyError(name)
    return name


def attach_child(owner: Trackable, name: str, child: Any) -> None:
    """Attach an object to its owner, as an attribute or element.

    Args:
      owner: A `RestoredObject`, a list, or a dictionary.
      name: Name of the attribute, key, or index in a list. Missing elements before the index become
        None.
      child: Object to attach.

    Raises:
      KeyError: If the index in a list is not valid, as in damaged files.
    """
    if isinstance(owner, dict):
        owner[name] = child
    elif isinstance(owner, list):
        if not name.isdecimal() or int(name) > _MAX_LIST_INDEX:
            raise KeyError(name)
        index = int(name)
        owner.extend([None] * (index + 1 - len(owner)))
        owner[index] = child
    elif isinstance(child, (SignedFunction, Function)) or _can_set_attribute(owner, name):
        setattr(owner, name, child)


def _can_set_attribute(owner: Trackable, name: str) -> bool:
    """Check whether an attribute would hide no attribute of the class."""
    return name == "__call__" or not hasattr(type(owner), check_attribute_name(name))
