"""Options of writing and reading SavedModels: `SaveOptions`, `LoadOptions` and `VariablePolicy`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any


class VariablePolicy(enum.Enum):
    """Policy for the devices of variables in a SavedModel.

    The values are always saved unsharded, and the loading program decides on their devices.

    Example:
      >>> tf.saved_model.SaveOptions().experimental_variable_policy.name
      'NONE'
    """

    NONE = None
    SAVE_VARIABLE_DEVICES = "save_variable_devices"
    EXPAND_DISTRIBUTED_VARIABLES = "expand_distributed_variables"

    @staticmethod
    def from_obj(obj: VariablePolicy | str | None) -> VariablePolicy:
        """Convert a policy, its value in upper or lower case, or None to a policy.

        Args:
          obj: Value of an option.

        Raises:
          ValueError: If there is no such policy.
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
    """Options of writing a SavedModel.

    Options that are described as ignored are accepted for compatibility with TensorFlow.

    Args:
      namespace_whitelist: Namespaces of custom ops. Checked and otherwise ignored, since there are
        only TensorFlow's ops.
      save_debug_info: Ignored; lines of the source are not saved.
      function_aliases: Further names of functions: for each name a `tf.function` or a list of them.
        `LoadOptions(experimental_load_function_aliases=True)` restores them.
      experimental_debug_stripper: Ignored; nodes for debugging are never written.
      experimental_io_device: Ignored; this process writes the files.
      experimental_variable_policy: A `tf.saved_model.experimental.VariablePolicy` or its value.
      experimental_custom_gradients: Whether functions have gradients in TensorFlow.
      experimental_image_format: Ignored; the graph is written to one file.
      experimental_skip_saver: Ignored; the nodes that save and restore the graph are written.
      experimental_sharding_callback: Ignored; variables are written to one file.
      extra_tags: Tags of the graph in addition to the serving tag.

    Raises:
      TypeError: If `namespace_whitelist` is not a list.
      ValueError: If one of its elements is not a string, if the aliases are not a dictionary, or if
        the policy is unknown.
    """

    def __init__(
        self,
        namespace_whitelist: list[str] | None = None,
        save_debug_info: bool = False,
        function_aliases: Mapping[str, Any] | None = None,
        experimental_debug_stripper: bool = False,
        experimental_io_device: str | None = None,
        experimental_variable_policy: VariablePolicy | str | None = None,
        experimental_custom_gradients: bool = True,
        experimental_image_format: bool = False,
        experimental_skip_saver: bool = False,
        experimental_sharding_callback: object = None,
        extra_tags: Iterable[str] | None = None,
    ) -> None:
        self.namespace_whitelist = _check_namespaces(namespace_whitelist)
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
    """Options of reading a SavedModel.

    Options that are described as ignored are accepted for compatibility with TensorFlow.

    Args:
      allow_partial_checkpoint: Ignored; a folder without all values is damaged.
      experimental_io_device: Ignored; this process reads the files.
      experimental_skip_checkpoint: Ignored; variables always get their values.
      experimental_variable_policy: As in `SaveOptions`. The current strategy or device decides on
        the devices of variables.
      experimental_load_function_aliases: Whether the loaded object gets an attribute
        `function_aliases` with the functions by
        the names in `SaveOptions`.

    Raises:
      ValueError: If the policy is unknown.
    """

    def __init__(
        self,
        allow_partial_checkpoint: bool = False,
        experimental_io_device: str | None = None,
        experimental_skip_checkpoint: bool = False,
        experimental_variable_policy: VariablePolicy | str | None = None,
        experimental_load_function_aliases: bool = False,
    ) -> None:
        self.allow_partial_checkpoint = allow_partial_checkpoint
        self.experimental_io_device = experimental_io_device
        self.experimental_skip_checkpoint = experimental_skip_checkpoint
        self.experimental_variable_policy = VariablePolicy.from_obj(experimental_variable_policy)
        self.experimental_load_function_aliases = experimental_load_function_aliases


def normalize_tags(tags: str | Iterable[str] | None) -> set[str]:
    """Return the tags that were passed to `load` as a set: one, several, or none for None."""
    if tags is None:
        return set()
    return set(tags) if isinstance(tags, Iterable) and not isinstance(tags, str) else {tags}


def _check_namespaces(namespaces: list[str] | None) -> list[str]:
    if namespaces is None:
        return []
    if not isinstance(namespaces, list):
        raise TypeError(
            f"namespace_whitelist must be a list of strings, got {namespaces!r} of type {type(namespaces).__name__}."
        )
    for name in namespaces:
        if not isinstance(name, str):
            raise ValueError(
                f"namespace_whitelist must hold strings, got {name!r} of type {type(name).__name__}."
            )
    return list(namespaces)
