"""`tf.name_scope`: prefixes for the names of variables."""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.context import context


class name_scope:
    """A context manager that prefixes the names of the variables created inside it.

    Args:
      name: The prefix.

    Example:
      >>> with tf.name_scope("encoder"):
      ...     tf.Variable(1.0, name="w").name
      'encoder/w:0'
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ValueError(f"name for name_scope must be a string, got {name!r}.")
        self._name = name
        self._outer: list[list[str]] = []

    @property
    def name(self) -> str:
        """Return the prefix."""
        return self._name

    def __enter__(self) -> str:
        self._outer.append(list(context.name_scopes))
        if self._name.endswith("/"):
            # A name that ends with a slash is a complete prefix, as returned by the `with`
            # statement, so it replaces the open scopes.
            context.name_scopes[:] = [self._name.rstrip("/")]
        elif self._name and context.graph is not None and context.trace is None:
            # Each block has a scope of its own in a version 1 graph.
            context.name_scopes[:] = [context.graph.unique_name(self._name)]
        elif self._name:
            context.name_scopes.append(self._name)
        else:
            context.name_scopes.clear()
        return "/".join(context.name_scopes) + "/" if context.name_scopes else ""

    def __exit__(self, *_: Any) -> None:
        context.name_scopes[:] = self._outer.pop()


def get_current_name_scope() -> str:
    """Return the open name scopes, joined by slashes.

    Example:
      >>> with tf.name_scope("a"), tf.name_scope("b"):
      ...     tf.get_current_name_scope()
      'a/b'
    """
    return "/".join(context.name_scopes)
