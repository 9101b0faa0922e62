"""Lookup of Keras objects by name, configuration, class or instance.

An `ObjectRegistry` exists for layers, losses, optimizers and so on. The module that defines the
objects fills the table of its registry. `LAYERS` and `OPTIMIZERS` are defined here, because layers
and optimizers contain other ones.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.environment.types import Config

if TYPE_CHECKING:

    class KerasObject:
        """Function, or object of a class, that a name or configuration determines."""

        __name__: str

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the object."""

        def __getattr__(self, name: str) -> Any: ...

else:
    KerasObject = Any

T = TypeVar("T")
# Classes and functions by name, as users pass them when they load a model.
CustomObjects: TypeAlias = dict[str, Any] | None

_custom: dict[str, Any] = {}
_names: dict[Any, str] = {}


def get_custom_objects() -> dict[str, Any]:
    """Return the dictionary of registered custom objects; changes to it take effect.

    Example:
      >>> "Doubled" in tf.keras.saving.get_custom_objects()
      False
      >>> tf.keras.saving.get_custom_objects()["Doubled"] = lambda x: 2 * x
      >>> tf.keras.activations.get("Doubled")(3)
      6
      >>> del tf.keras.saving.get_custom_objects()["Doubled"]
    """
    return _custom


class custom_object_scope:
    """Context manager that registers custom classes and functions within a `with` block.

    Args:
      *args: Dictionaries from names to classes and functions.

    Example:
      >>> with tf.keras.utils.custom_object_scope({"twice": lambda x: 2 * x}):
      ...     layer = tf.keras.layers.Activation("twice")
    """

    def __init__(self, *args: dict[str, Any] | None) -> None:
        self._objects = args
        self._saved: dict[str, Any] = {}

    def __enter__(self) -> custom_object_scope:
        self._saved = dict(_custom)
        for objects in self._objects:
            _custom.update(objects or {})
        return self

    def __exit__(self, *_: object) -> None:
        _custom.clear()
        _custom.update(self._saved)


def register_keras_serializable(
    package: str = "Custom", name: str | None = None
) -> Callable[[T], T]:
    """Return a decorator that registers a class or function for loading models.

    Args:
      package: Prefix of the registered name.
      name: Registered name after the prefix; by default the name of the class or function.

    Raises:
      ValueError: If a class has no `get_config`.

    Example:
      >>> @tf.keras.saving.register_keras_serializable(package="zoo")
      ... class Penguin(tf.keras.layers.Layer):
      ...     pass
      >>> tf.keras.saving.get_registered_name(Penguin)
      'zoo>Penguin'
    """

    def decorate(target: Any) -> Any:
        if isinstance(target, type) and not hasattr(target, "get_config"):
            raise ValueError("Cannot register a class that does not have a get_config() method.")
        full_name = f"{package}>{name or target.__name__}"
        _custom[full_name] = target
        _names[target] = full_name
        return target

    return decorate


def set_config_name(function: T, name: str) -> T:
    """Set the name of a function in configurations, when another function has the same Python name.

    Args:
      function: The function.
      name: Name in configurations.

    Returns:
      The function.
    """
    _names[function] = name
    return function


def get_registered_name(obj: object) -> str:
    """Return the name under which a class or function is registered, or else its own name.

    Example:
      >>> tf.keras.saving.get_registered_name(tf.keras.layers.Dense)
      'Dense'
    """
    return _names.get(obj, getattr(obj, "__name__", str(obj)))


def get_registered_object(
    name: str, custom_objects: CustomObjects = None, module_objects: CustomObjects = None
) -> Any:
    """Return the registered class or function with a name, or None.

    Example:
      >>> tf.keras.saving.get_registered_object("Length", custom_objects={"Length": len})("abc")
      3
    """
    for source in (custom_objects, _custom, module_objects):
        if source and name in source:
            return source[name]
    return None


def to_snake_case(name: str) -> str:
    """Convert a class name to snake case: `MeanSquaredError` to `mean_squared_error`."""
    partly_split = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", partly_split).lower()


class UnknownNameError(ValueError, TypeError):
    """Error for a class or function that no registry contains; Keras' file formats raise either type."""


class LazyObject(NamedTuple):
    """Class or function of a module that is imported when a configuration first names it."""

    module: str
    name: str

    def load(self) -> Any:
        """Import the module and return the object."""
        return getattr(importlib.import_module(self.module), self.name)


@hide_frames_of_methods
class ObjectRegistry:
    """Classes and functions of one category that configurations may name, such as layers or losses.

    A name is looked up in `custom_objects`, in the registered custom objects and in the table, in
    this order. It is never imported or resolved through attributes.

    Args:
      item_name: Noun for one object, for error messages.
      table: Classes and functions by name.
      module: Public module of the classes.
    """

    def __init__(
        self, item_name: str, table: dict[str, Any] | None = None, module: str | None = None
    ) -> None:
        self.item_name = item_name
        self.table = dict(table or {})
        self.module = module

    def add(self, *items: Any, **aliases: Any) -> None:
        """Add classes and functions.

        Args:
          *items: Objects that are registered under their own names.
          **aliases: Objects by other names.
        """
        self.table |= {thing.__name__: thing for thing in items} | aliases

    def find(self, name: object, custom_objects: CustomObjects = None) -> Any:
        """Return the object with a name, or None.

        Args:
          name: The name, exactly or in lower case.
          custom_objects: Additional objects by name.
        """
        if not isinstance(name, str):
            return None
        entry = get_registered_object(name, custom_objects, self.table)
        entry = entry if entry is not None else self.table.get(name.lower())
        return entry.load() if isinstance(entry, LazyObject) else entry

    def get(self, identifier: object, custom_objects: CustomObjects = None) -> Any:
        """Return the object for an identifier.

        Args:
          identifier: A name, configuration, class, instance or function, or None.
          custom_objects: Additional objects by name.

        Returns:
          An instance for the name of a class, a class or a configuration; None for None; functions
          and instances unchanged.

        Raises:
          ValueError: If the name is unknown. The message lists similar names.
        """
        if identifier is None:
            return None
        if isinstance(identifier, dict):
            return self._get_from_config(identifier, custom_objects)
        if isinstance(identifier, str):
            target = self.find(identifier, custom_objects)
            if target is None:
                raise self._make_unknown_name_error(identifier)
            return target() if isinstance(target, type) else target
        if isinstance(identifier, type):
            return identifier()
        if callable(identifier):
            return identifier
        raise ValueError(f"Could not interpret {self.item_name} identifier: {identifier!r}")

    def deserialize(self, config: object, custom_objects: CustomObjects = None) -> Any:
        """Create an object from its configuration; equivalent to `get`.

        Args:
          config: Result of `serialize`.
          custom_objects: Additional objects by name.
        """
        return self.get(config, custom_objects)

    def _get_from_config(self, identifier: Config, custom_objects: CustomObjects) -> Any:
        name, config = identifier.get("class_name"), identifier.get("config", {})
        if not isinstance(name, str):
            raise ValueError(
                f"A configuration of a {self.item_name} needs a class_name: {identifier!r}"
            )
        if name == "function" and isinstance(config, str):
            # Keras 2.13 and later write functions in this form.
            return self.get(config, custom_objects)
        registered = identifier.get("registered_name")
        target = (
            get_registered_object(registered, custom_objects)
            if isinstance(registered, str)
            else None
        )
        target = target if target is not None else self.find(name, custom_objects)
        if target is None:
            raise self._make_unknown_name_error(name)
        if not isinstance(target, type):
            return target
        if isinstance(config, dict):
            config = {k: self._create_marked(v, custom_objects) for k, v in config.items()}
        created = _create_from_config(target, config, custom_objects)
        build_config = identifier.get("build_config")
        if build_config and is_overridden(created, "build_from_config"):
            created.build_from_config(build_config)
        return created

    def _create_marked(self, entry: Any, custom_objects: CustomObjects) -> Any:
        """Return the object for a marked entry of a configuration; other entries unchanged."""
        if not isinstance(entry, dict) or OBJECT_MARK not in entry:
            return entry
        # A layer may hold an initializer, or another object that is no layer.
        every_kind = ObjectRegistry("object", collect_objects() | self.table)
        return find_registry(entry, every_kind).get(entry, custom_objects)

    def _make_unknown_name_error(self, name: str) -> UnknownNameError:
        similar_names = difflib.get_close_matches(name, self.table, n=5, cutoff=0.5)
        hint = (
            f" Did you mean {' or '.join(map(repr, similar_names))}?"
            if similar_names
            else f" Known are {sorted(self.table)}."
        )
        return UnknownNameError(
            f"Unknown {self.item_name}: {name!r}. Please ensure you are using a `keras.utils.custom_object_scope` and that "
            f"this object is included in the scope.{hint} Could not locate class {name!r}. If {name!r} is a custom class, "
            "please register it. Make sure custom classes are decorated with `@keras.utils.register_keras_serializable()`."
        )


# Entry of the configuration of an object that `get_config` returned without serializing it.
OBJECT_MARK = "__passive_serialization__"
# Messages of Python about arguments that a class does not have, or needs.
_WRONG_NAMES = re.compile(
    r" missing \d+ |unexpected keyword argument|keywords must be strings|takes no arguments|argument after \*\*|"
    r"multiple values for (keyword )?argument"
)


def is_overridden(obj: object, method: str) -> bool:
    """Check whether the class of an object, outside of Meshflow, defines a method.

    Args:
      obj: The object.
      method: Name of the method.
    """
    module = getattr(getattr(type(obj), method, None), "__module__", None) or "meshflow."
    return not module.startswith("meshflow.")


def _create_from_config(cls: type, config: Config, custom_objects: CustomObjects) -> Any:
    """Create an object with `from_config`; report missing entries of our own classes as damage."""
    if not hasattr(cls, "from_config"):
        raise TypeError(
            f"Unable to reconstruct an instance of {cls.__name__}, which has a configuration: the class needs a "
            "classmethod `from_config` that takes it."
        )
    try:
        if "custom_objects" in inspect.signature(cls.from_config).parameters:
            return cls.from_config(config, custom_objects=custom_objects)
        # The nested configurations may name custom objects, too.
        with custom_object_scope(custom_objects or {}):
            return cls.from_config(config)
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:
        if isinstance(error, TypeError) and "'dict' object" in str(error):
            raise TypeError(
                f"{cls} could not be deserialized properly. Please ensure that components that are Python object instances "
                "(layers, models, etc.) returned by `get_config()` are explicitly deserialized in the model's "
                f"`from_config()` method. Exception encountered: {error}"
            ) from error
        # A TypeError about wrong values, unlike one about the names of arguments, has a clear message
        # of its own.
        has_own_message = isinstance(error, TypeError) and not _WRONG_NAMES.search(str(error))
        if has_own_message or not cls.__module__.startswith("meshflow."):
            raise
        message = f"The configuration of a {cls.__name__} is damaged: {error!r}."
        # An unknown argument is also a TypeError, as in Python.
        is_unknown = isinstance(error, TypeError) and " missing " not in str(error)
        error_class = InvalidValueError if is_unknown else ValueError
        raise error_class(message) from error


def create_registry(item_name: str, module: str, table: dict[str, Any]) -> ObjectRegistry:
    """Create a registry in which `deserialize_keras_object` searches, too.

    Args:
      item_name: Noun for one object, for error messages.
      module: Public module of the classes.
      table: Classes and functions by name.
    """
    REGISTRIES[item_name] = registry = ObjectRegistry(item_name, table, module)
    return registry


@hide_frames_of_methods
class _LayerRegistry(ObjectRegistry):
    """Registry of layers; `clone_model` temporarily replaces some of them."""

    def __init__(self) -> None:
        super().__init__("layer", module="keras.layers")
        self._replacements: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
            "layer_replacements", default=None
        )

    @contextlib.contextmanager
    def replace_layers(self, layers: dict[str, Any]) -> Iterator[None]:
        """Return other layers for the configurations of some layers within a `with` block.

        Args:
          layers: Replacements by the names of the layers that they replace.
        """
        token = self._replacements.set(layers)
        try:
            yield
        finally:
            self._replacements.reset(token)

    def is_called_replacement(self, layer: object, entry: Config) -> bool:
        """Check whether a layer replaces one that a model calls.

        Args:
          layer: Layer that was found for the entry.
          entry: Entry of the layer in the configuration of a model.
        """
        layers = (self._replacements.get() or {}).values()
        return bool(entry["inbound_nodes"]) and any(replacement is layer for replacement in layers)

    def get(self, identifier: object, custom_objects: CustomObjects = None) -> Any:
        """Return the layer for an identifier; see `ObjectRegistry.get`."""
        replacements = self._replacements.get()
        if replacements and isinstance(identifier, dict):
            config = identifier.get("config")
            name = identifier.get("name") or (isinstance(config, dict) and config.get("name"))
            layer = replacements.get(name)
            if layer is not None:
                return layer
        return super().get(identifier, custom_objects)


@hide_frames_of_methods
class _OptimizerRegistry(ObjectRegistry):
    """Registry of optimizers; legacy ones have names with the prefix "legacy."."""

    def _get_from_config(self, identifier: Config, custom_objects: CustomObjects) -> Any:
        name = identifier.get("class_name")
        names = (identifier.get("registered_name"), name)
        if isinstance(name, str) and not any(
            n and get_registered_object(n, custom_objects) for n in names
        ):
            # Keras 2.11 and later name their own optimizers "Custom>Adam".
            name = name.removeprefix("Custom>") if not name.startswith("legacy.") else name
            if _is_legacy_optimizer(identifier) and f"legacy.{name.lower()}" in self.table:
                name = f"legacy.{name.lower()}"
            identifier = {**identifier, "class_name": name, "registered_name": None}
        return super()._get_from_config(identifier, custom_objects)


def _is_legacy_optimizer(identifier: Config) -> bool:
    """Check whether a configuration is of an optimizer up to TensorFlow 2.10, which is the default."""
    config = identifier.get("config")
    if identifier.get("module") == "keras.optimizers.legacy":
        return True
    if not isinstance(config, dict) or not config:
        return False
    is_new = (
        identifier.get("module") == "keras.optimizers"
        or identifier["class_name"].startswith("Custom>")
        or "use_ema" in config
    )
    return bool(config.get("is_legacy_optimizer", not is_new))


REGISTRIES: dict[str, ObjectRegistry] = {}
# The modules of layers and models fill this registry. It is defined here because layers contain
# layers.
LAYERS = _LayerRegistry()
REGISTRIES["layer"] = LAYERS
OPTIMIZERS = REGISTRIES["optimizer"] = _OptimizerRegistry("optimizer", module="keras.optimizers")

# Public modules of classes that are not in the module of their registry. Modules in `keras.src`
# were never public, but files name them.
_PUBLIC_MODULES = {
    "Model": "keras",
    "Sequential": "keras",
    "Policy": "keras.mixed_precision",
    **dict.fromkeys(
        ("LossScaleOptimizer", "LossScaleOptimizerV3"),
        "keras.src.mixed_precision.loss_scale_optimizer",
    ),
    **dict.fromkeys(("LinearModel", "WideDeepModel"), "keras.experimental"),
    "RandomFourierFeatures": "keras.layers.experimental",
    "SyncBatchNormalization": "keras.layers.experimental",
    "Functional": "keras.src.engine.functional",
    **dict.fromkeys(
        ("TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty"),
        "keras.src.layers.core.tf_op_layer",
    ),
    **dict.fromkeys(("AddLoss", "AddMetric"), "keras.src.engine.base_layer"),
}


def get_public_module(cls: type) -> str | None:
    """Return the module that configurations name for a class; None for custom classes.

    Args:
      cls: The class.

    Example:
      >>> from meshflow.keras.registry import get_public_module
      >>> get_public_module(tf.keras.layers.Dense), get_public_module(tf.keras.optimizers.legacy.SGD), get_public_module(dict)
      ('keras.layers', 'keras.optimizers.legacy', 'builtins')
    """
    if not cls.__module__.startswith("meshflow."):
        return "builtins" if cls.__module__ == "builtins" else None
    return _find_public_module(cls)


@functools.cache
def _find_public_module(cls: type) -> str | None:
    if cls.__name__ in _PUBLIC_MODULES:
        return _PUBLIC_MODULES[cls.__name__]
    for registry in REGISTRIES.values():
        names = [name for name, item in registry.table.items() if _refers_to(item, cls)]
        if names and registry.module:
            is_legacy = registry is OPTIMIZERS and all(name.startswith("legacy.") for name in names)
            return f"{registry.module}.legacy" if is_legacy else registry.module
    return None


def _refers_to(item: object, cls: type) -> bool:
    return item is cls or (
        isinstance(item, LazyObject) and (item.module, item.name) == (cls.__module__, cls.__name__)
    )


# Registries by precedence, for names without a module: an earlier registry takes precedence.
_PRECEDENCE = (
    *("layer", "loss function", "metric function", "optimizer", "decay", "regularizer"),
    *("initializer", "constraint", "activation function", "dtype policy"),
)


def collect_objects() -> dict[str, Any]:
    """Return the classes and functions of all registries by name."""
    table: dict[str, Any] = {}
    for item_name in reversed(_PRECEDENCE):
        table |= REGISTRIES[item_name].table
    return table


def find_registry(config: Config, default: ObjectRegistry) -> ObjectRegistry:
    """Return the registry with the module that a configuration names.

    This distinguishes classes of the same name in several registries.

    Args:
      config: The configuration.
      default: Result if no registry has that module.
    """
    module = config.get("module")
    if not isinstance(module, str):
        return default
    candidates = (r for r in REGISTRIES.values() if r.module == module.removesuffix(".legacy"))
    registry = next(candidates, default)
    is_known = registry.find(config["class_name"]) is not None or config.get("registered_name")
    return registry if is_known and registry.module else default


def make_name_table(*classes: Any, **aliases: Any) -> dict[str, Any]:
    """Map own names, names in snake and lower case, and aliases to classes and functions."""
    table: dict[str, Any] = {}
    for item in classes:
        table[item.__name__] = item
        table.setdefault(to_snake_case(item.__name__), item)
        table.setdefault(item.__name__.lower(), item)
    return table | aliases
