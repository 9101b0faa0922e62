"""`tf.Module`: a container that finds its variables and submodules."""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshflow.core.runtime.names import name_scope
from meshflow.core.variables.variable import Variable


class Awaited:
    """Base of objects that get attributes later, which somebody may wait for."""

    # Called with each new attribute's value; a checkpoint restores what was not there before.
    _on_attribute: Callable[[Any], None] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if self._on_attribute is not None:
            self._on_attribute(value)

    def _wait_for_attributes(self, go_on: Callable[[Any], None]) -> None:
        before = self._on_attribute

        def call(value: Any) -> None:
            if before is not None:
                before(value)
            go_on(value)

        object.__setattr__(self, "_on_attribute", call)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_on_attribute"}


class Module(Awaited):
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

    # Attributes that are none of the module's parts.
    _TF_MODULE_IGNORED_PROPERTIES: frozenset[str] = frozenset()

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
            hidden = module._TF_MODULE_IGNORED_PROPERTIES
            for name, value in sorted(vars(module).items()):
                for leaf in () if name in hidden else _leaves(value, set()):
                    if isinstance(leaf, kind):
                        results.setdefault(id(leaf), leaf)
                    if isinstance(leaf, Module) and id(leaf) not in seen:
                        seen.add(id(leaf))
                        queue.append(leaf)
        return list(results.values())

    def _flatten(
        self,
        recursive: bool = True,
        predicate: Callable[[Any], bool] | None = None,
        attribute_traversal_key: Callable[[Any], Any] | None = None,
        with_path: bool = False,
        expand_composites: bool = False,
    ) -> Iterator[Any]:
        """The leaves of the attributes that satisfy a predicate, for subclasses with collections of their own.

        Args:
          recursive: whether to look into submodules.
          predicate: what to yield; default everything.
          attribute_traversal_key: the order of an object's attributes, a key for `sorted`.
          with_path: whether to yield pairs (path, leaf); a path is a tuple of names, keys and positions.
          expand_composites: accepted for TensorFlow's sake.
        """
        wanted = predicate or (lambda _: True)
        seen = {id(self)}
        queue: list[tuple[tuple[Any, ...], Module]] = [((), self)]
        while queue:
            path, module = queue.pop(0)
            hidden = module._TF_MODULE_IGNORED_PROPERTIES
            own = [name for name in vars(module) if name not in hidden]
            names = sorted(own, key=attribute_traversal_key)
            for leaf_path, leaf in (
                pair for name in names for pair in _paths((*path, name), vars(module)[name])
            ):
                if wanted(leaf) and id(leaf) not in seen:
                    yield (leaf_path, leaf) if with_path else leaf
                    seen.add(id(leaf))
                if recursive and isinstance(leaf, Module) and id(leaf) not in seen:
                    seen.add(id(leaf))
                    queue.append((leaf_path, leaf))

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a method so that it runs in the module's name scope."""

        @functools.wraps(method)
        def wrapped(self: Module, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return wrapped


def _leaves(value: Any, inside: set[int]) -> Iterator[Any]:
    if isinstance(value, (list, tuple, deque, Mapping)):
        if id(value) in inside:
            return
        items = [value[k] for k in _keys(value)] if isinstance(value, Mapping) else value
        for item in items:
            yield from _leaves(item, inside | {id(value)})
    elif getattr(value, "_is_sharded", False):
        yield from value.variables
    elif isinstance(value, (Variable, Module)):
        yield value


def _paths(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping):
        for key in _keys(value):
            yield from _paths((*path, key), value[key])
    elif isinstance(value, (list, tuple, deque)):
        for i, item in zip(getattr(value, "_fields", itertools.count()), value, strict=False):
            yield from _paths((*path, i), item)
    else:
        yield path, value


def _keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """The keys in order, where they have one."""
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def _snake_case(name: str) -> str:
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
