"""`tf.name_scope`: prefixes for the names of variables."""

from __future__ import annotations

from typing import Any

from meshflow.core.context import context


class name_scope:
    """Prefixes the names of variables made inside a `with` block.

    Args:
      name: the prefix.

    Example:
      >>> import meshflow as tf
      >>> with tf.name_scope("encoder"):
      ...     tf.Variable(1.0, name="w").name
      'encoder/w:0'
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ValueError(f"name for name_scope must be a string, got {name!r}.")
        self._name = name
        self._depth = 0

    @property
    def name(self) -> str:
        """The prefix."""
        return self._name

    def __enter__(self) -> str:
        self._depth = len(context.names)
        if self._name:
            context.names.append(self._name.rstrip("/"))
        return "/".join(context.names) + "/"

    def __exit__(self, *_: Any) -> None:
        del context.names[self._depth :]
