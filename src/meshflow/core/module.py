"""`tf.Module`: a container that finds its variables and submodules."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshflow.core.names import name_scope
from meshflow.core.variable import Variable


class Module:
    """Base class of objects that own variables.

    Variables and modules are found among the attributes, also inside lists, tuples and dictionaries.

    Args:
      name: the module's name; default the class name in snake case.

    Raises:
      ValueError: when the name is no valid identifier.

    Example:
      >>> import meshflow as tf
      >>> class Line(tf.Module):
      ...     def __init__(self):
      ...         super().__init__(name="line")
      ...         self.slope = tf.Variable(2.0, name="slope")
      >>> [v.name for v in Line().trainable_variables]
      ['slope:0']
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = _snake_case(type(self).__name__)
        elif not re.match(r"^[a-zA-Z_]([a-zA-Z0-9_])*$", name):
            raise ValueError(
                f"{name!r} is not a valid module name. Module names must be valid Python identifiers."
            )
        self._name = name
        with name_scope(name) as prefix:
            self._name_scope = name_scope(prefix)

    @property
    def name(self) -> str:
        """The module's name."""
        return self._name

    @property
    def name_scope(self) -> name_scope:
        """A name scope with the module's name."""
        return self._name_scope

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of the module and its submodules."""
        return tuple(self._found(Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The trainable variables of the module and its submodules."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The other variables of the module and its submodules."""
        return tuple(v for v in self.variables if not v.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules below this one."""
        return tuple(m for m in self._found(Module) if m is not self)

    def _found(self, kind: type) -> list[Any]:
        """Objects of a type among the attributes of this module and its submodules, breadth first."""
        results: dict[int, Any] = {}
        seen = {id(self)}
        queue: list[Module] = [self]
        while queue:
            module = queue.pop(0)
            for _, value in sorted(vars(module).items()):
                for leaf in _leaves(value, set()):
                    if isinstance(leaf, kind):
                        results.setdefault(id(leaf), leaf)
                    if isinstance(leaf, Module) and id(leaf) not in seen:
                        seen.add(id(leaf))
                        queue.append(leaf)
        return list(results.values())

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a method so that it runs in the module's name scope."""

        @functools.wraps(method)
        def wrapped(self: Module, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return wrapped


def _leaves(value: Any, inside: set[int]) -> Iterator[Any]:
    if isinstance(value, (list, tuple, Mapping)):
        if id(value) in inside:
            return
        items = [value[k] for k in value] if isinstance(value, Mapping) else value
        for item in items:
            yield from _leaves(item, inside | {id(value)})
    elif isinstance(value, (Variable, Module)):
        yield value


def _snake_case(name: str) -> str:
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
