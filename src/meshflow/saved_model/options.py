"""How SavedModels are written and read: `SaveOptions`, `LoadOptions`, and the policy for variables of both."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["LoadOptions", "SaveOptions", "VariablePolicy", "tags_of"]


class VariablePolicy(enum.Enum):
    """What a SavedModel says of the devices of variables. All are written whole, and restored where the loading program says.

    Example:
      >>> import meshflow as tf
      >>> tf.saved_model.SaveOptions().experimental_variable_policy.name
      'NONE'
    """

    NONE = None
    SAVE_VARIABLE_DEVICES = "save_variable_devices"
    EXPAND_DISTRIBUTED_VARIABLES = "expand_distributed_variables"

    @staticmethod
    def from_obj(obj: Any) -> VariablePolicy:
        """A policy from itself, its value in upper or lower case, or None.

        Args:
          obj: what an option was given.

        Raises:
          ValueError: for another value.
        """
        if isinstance(obj, VariablePolicy):
            return obj
        key = obj if obj is None else str(obj).lower()
        for policy in VariablePolicy:
            if policy.value == key:
                return policy
        raise ValueError(
            f"Received invalid VariablePolicy value: {obj}. Expected one of {[p.value for p in VariablePolicy]}."
        )

    def _save_variable_devices(self) -> bool:
        return self is not VariablePolicy.NONE

    def _expand_distributed_variables(self) -> bool:
        return self is VariablePolicy.EXPAND_DISTRIBUTED_VARIABLES


class SaveOptions:
    """How a SavedModel is written. What is not said to do something is accepted and changes nothing.

    Args:
      namespace_whitelist: of ops; there are none but TensorFlow's own.
      save_debug_info: lines of the source are not written.
      function_aliases: functions by further names, each made by `tf.function` or a list of them, which
        `LoadOptions(experimental_load_function_aliases=True)` gives back.
      experimental_debug_stripper: nodes for debugging are not written.
      experimental_io_device: files are written by this process.
      experimental_variable_policy: a `tf.saved_model.experimental.VariablePolicy`, or its value.
      experimental_custom_gradients: whether functions have gradients in TensorFlow.
      experimental_image_format: one file is written.
      experimental_skip_saver: the graph's own nodes that save it are written.
      experimental_sharding_callback: variables lie in one file.
      extra_tags: tags of the graph besides the one for serving.

    Raises:
      TypeError: when `namespace_whitelist` is no list.
      ValueError: when one of it is no string, for aliases that are no dictionary, or another policy.
    """

    def __init__(
        self,
        namespace_whitelist: Any = None,
        save_debug_info: bool = False,
        function_aliases: Mapping[str, Any] | None = None,
        experimental_debug_stripper: bool = False,
        experimental_io_device: str | None = None,
        experimental_variable_policy: Any = None,
        experimental_custom_gradients: bool = True,
        experimental_image_format: bool = False,
        experimental_skip_saver: bool = False,
        experimental_sharding_callback: Any = None,
        extra_tags: Iterable[str] | None = None,
    ) -> None:
        self.namespace_whitelist = _namespaces(namespace_whitelist)
        self.save_debug_info = save_debug_info
        if function_aliases and not isinstance(function_aliases, Mapping):
            raise ValueError(
                f"function_aliases must be a dictionary of functions by name, got {function_aliases!r}."
            )
        self.function_aliases = dict(function_aliases or {})
        self.experimental_debug_stripper = experimental_debug_stripper
        self.experimental_io_device = experimental_io_device
        self.experimental_variable_policy = VariablePolicy.from_obj(experimental_variable_policy)
        self.experimental_custom_gradients = experimental_custom_gradients
        self.experimental_image_format = experimental_image_format
        self.experimental_skip_saver = experimental_skip_saver
        self.experimental_sharding_callback = experimental_sharding_callback
        self.extra_tags = extra_tags


class LoadOptions:
    """How a SavedModel is read. What is not said to do something is accepted and changes nothing.

    Args:
      allow_partial_checkpoint: a folder without all values is damaged.
      experimental_io_device: files are read by this process.
      experimental_skip_checkpoint: variables have their values.
      experimental_variable_policy: as of `SaveOptions`; variables are where the present strategy or device says.
      experimental_load_function_aliases: whether the loaded object gets an attribute `function_aliases`: functions by
        the names that `SaveOptions` gave them.

    Raises:
      ValueError: for another policy.
    """

    def __init__(
        self,
        allow_partial_checkpoint: bool = False,
        experimental_io_device: str | None = None,
        experimental_skip_checkpoint: bool = False,
        experimental_variable_policy: Any = None,
        experimental_load_function_aliases: bool = False,
    ) -> None:
        self.allow_partial_checkpoint = allow_partial_checkpoint
        self.experimental_io_device = experimental_io_device
        self.experimental_skip_checkpoint = experimental_skip_checkpoint
        self.experimental_variable_policy = VariablePolicy.from_obj(experimental_variable_policy)
        self.experimental_load_function_aliases = experimental_load_function_aliases


def tags_of(given: Any) -> set[Any]:
    """The tags that `load` was given: one, several, or None for none."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return set(given) if several else set() if given is None else {given}


def _namespaces(given: Any) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise TypeError(
            f"namespace_whitelist must be a list of strings, got {given!r} of type {type(given).__name__}."
        )
    for name in given:
        if not isinstance(name, str):
            raise ValueError(
                f"namespace_whitelist must hold strings, got {name!r} of type {type(name).__name__}."
            )
    return list(given)
