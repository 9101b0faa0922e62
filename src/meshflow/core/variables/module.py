"""`tf.Module`: a container that finds its variables and submodules."""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.variables.variable import Variable

T = TypeVar("T")
_PACKAGE = __name__.partition(".")[0]


class ObservableAttributes:
    """Base class of objects with observers of new attributes."""

    # This function is called with the value of each new attribute; a checkpoint restores values
    # that did not exist before.
    _on_attribute: Callable[[Any], None] | None = None
    # Names of the attributes that are saved, or None if all are.
    _tracked_names: set[str] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if self._on_attribute is not None:
            self._on_attribute(value)

    def _observe_attributes(self, observer: Callable[[Any], None]) -> None:
        previous = self._on_attribute

        def call(value: Any) -> None:
            if previous is not None:
                previous(value)
            observer(value)

        object.__setattr__(self, "_on_attribute", call)

    def _no_dependency(self, value: T) -> T:
        """Return a value for an attribute; subclasses in libraries call it for values that are not saved."""
        return value

    def _track_trackable(self, trackable: T, name: str, overwrite: bool = False) -> T:
        """Save an object with this one, under a name."""
        if not overwrite and getattr(self, name, trackable) is not trackable:
            raise ValueError(
                f"Called Trackable._track_trackable() with name='{name}', but a Trackable with this name is already "
                "declared as a dependency. Pass overwrite=True to replace it."
            )
        # A library's own `__setattr__` may call this method, so that of Meshflow is used.
        owner: Any = next(
            cls
            for cls in type(self).__mro__
            if "__setattr__" in vars(cls) and cls.__module__.startswith(f"{_PACKAGE}.")
        )
        if self._tracked_names is not None:
            self._tracked_names.add(name)
        owner.__setattr__(self, name, trackable)
        return trackable

    def _trackable_children(self, save_type: str = "checkpoint", **_: object) -> dict[str, Any]:
        """Return the objects that are saved with this one, by name."""
        children: dict[str, Any] = get_public_package().__internal__.tracking.list_children(self)
        return children

    @property
    def _unconditional_checkpoint_dependencies(self) -> list[Any]:
        reference = get_public_package().__internal__.tracking.TrackableReference
        return [reference(*item) for item in self._trackable_children().items()]

    @property
    def _unconditional_dependency_names(self) -> dict[str, Any]:
        return self._trackable_children()

    def _lookup_dependency(self, name: str, cached_dependencies: Any = None) -> Any:
        """Return an object that is saved with this one, or None."""
        return (cached_dependencies or self._trackable_children()).get(name)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_on_attribute"}


class Module(ObservableAttributes):
    """Base class of objects that own variables.

    Variables and modules are found in the attributes, also inside lists, tuples and dictionaries.

    Args:
      name: Name of the module; by default the class name in snake case.

    Raises:
      ValueError: If the name is not a valid identifier.

    Example:
      >>> class Line(tf.Module):
      ...     def __init__(self):
      ...         super().__init__(name="line")
      ...         self.slope = tf.Variable(2.0, name="slope")
      >>> [v.name for v in Line().trainable_variables]
      ['slope:0']
    """

    # Attributes that are not parts of the module.
    _TF_MODULE_IGNORED_PROPERTIES: frozenset[str] = frozenset()

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = _to_snake_case(type(self).__name__)
        elif not re.match(r"^[a-zA-Z_]([a-zA-Z0-9_])*$", name):
            raise ValueError(
                f"{name!r} is not a valid module name. Module names must be valid Python identifiers."
            )
        self._name = name
        with name_scope(name) as prefix:
            self._name_scope = name_scope(prefix)

    @property
    def name(self) -> str:
        """Return the name of the module."""
        return self._name

    @property
    def name_scope(self) -> name_scope:
        """Return a name scope with the name of the module."""
        return self._name_scope

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return all variables of the module and its submodules."""
        return tuple(self._find_objects(Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Return the trainable variables of the module and its submodules."""
        return tuple(v for v in self._find_objects(Variable) if v.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """Return the non-trainable variables of the module and its submodules."""
        return tuple(v for v in self._find_objects(Variable) if not v.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """Return all modules below this one."""
        return tuple(m for m in self._find_objects(Module) if m is not self)

    def _find_objects(self, cls: type[T]) -> list[T]:
        """Find objects of a class in this module, and then in each of its submodules."""
        is_selected = lambda leaf: isinstance(leaf, cls)
        return list(self._flatten(predicate=is_selected, expand_composites=True))

    def _flatten(
        self,
        recursive: bool = True,
        predicate: Callable[[Any], bool] | None = None,
        attribute_traversal_key: Callable[[Any], Any] | None = None,
        with_path: bool = False,
        expand_composites: bool = False,
    ) -> Iterator[Any]:
        """Yield the selected leaves of the attributes, for subclasses with collections.

        Args:
          recursive: Whether to include submodules.
          predicate: Selects the leaves; by default all.
          attribute_traversal_key: Order of the attributes of an object, a key for `sorted`.
          with_path: Whether to yield pairs (path, leaf); a path is a tuple of names and keys.
          expand_composites: Whether the parts of composite tensors, the shards of variables and the variables of
            metrics are leaves.
        """
        is_selected = predicate or (lambda _: True)
        seen = {id(self)}

        def flatten(module: Module, enclosing: tuple[Module, ...]) -> Iterator[Any]:
            submodules = []
            hidden = module._TF_MODULE_IGNORED_PROPERTIES
            visible = [name for name in vars(module) if name not in hidden]
            for name in sorted(visible, key=attribute_traversal_key):
                for path, leaf in _iterate_paths(
                    (name,), vars(module)[name], expand_composites, set()
                ):
                    if not with_path and id(leaf) in seen:
                        continue
                    if is_selected(leaf):
                        yield (path, leaf) if with_path else leaf
                        seen.add(id(leaf))
                    if isinstance(leaf, Module):
                        submodules.append((path, leaf))
                        seen.add(id(leaf))
            # With paths, a module that contains itself is yielded once more.
            if not recursive or any(module is outer for outer in enclosing):
                return
            for path, submodule in submodules:
                for value in flatten(submodule, (*enclosing, module)):
                    yield ((*path, *value[0]), value[1]) if with_path else value

        yield from flatten(self, ())

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a method so that it runs in the name scope of the module."""

        @functools.wraps(method)
        def wrapper(self: Module, *args: Any, **kwargs: Any) -> object:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return wrapper


def _iterate_paths(
    path: tuple[Any, ...], value: Any, expand_composites: bool, enclosing: set[int]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of a structure with their paths; a container in itself is skipped."""
    if expand_composites:
        # Specs of a library's modules, such as distributions, may need private specs of variables.
        if isinstance(value, CompositeTensor) and not isinstance(value, Module):
            spec: Any = value._type_spec
            value = spec._to_components(value)
        elif getattr(value, "_is_sharded", False) or getattr(value, "_is_metric", False):
            value = value.variables
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = [(key, value[key]) for key in _sort_keys(value)]
    elif isinstance(value, (list, tuple, deque)):
        items = zip(getattr(value, "_fields", itertools.count()), value, strict=False)
    else:
        yield path, value
        return
    if id(value) not in enclosing:
        for key, item in items:
            yield from _iterate_paths(
                (*path, key), item, expand_composites, enclosing | {id(value)}
            )


def _sort_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys, sorted if they can be compared."""
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def _to_snake_case(name: str) -> str:
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
