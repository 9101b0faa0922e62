"""Looking things up by name: 'relu', 'adam', {'class_name': ..., 'config': ...}, classes, objects.

Each kind of thing is a `Family`, whose module fills its table: `LAYERS`, that of losses, and so on.
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
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_custom: dict[str, Any] = {}
_names: dict[Any, str] = {}


def get_custom_objects() -> dict[str, Any]:
    """The dictionary of registered custom objects; changing it registers more.

    Example:
      >>> import meshflow as tf
      >>> "Doubled" in tf.keras.saving.get_custom_objects()
      False
      >>> tf.keras.saving.get_custom_objects()["Doubled"] = lambda x: 2 * x
      >>> tf.keras.activations.get("Doubled")(3)
      6
      >>> del tf.keras.saving.get_custom_objects()["Doubled"]
    """
    return _custom


class custom_object_scope:
    """Makes custom classes and functions known by name inside a `with` block.

    Args:
      objects: dictionary from name to class or function.

    Example:
      >>> import meshflow as tf
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
    """Decorator that makes a class or function known by name when models are loaded.

    Args:
      package: prefix of the name.
      name: default the class's or function's own.

    Returns:
      A decorator.

    Raises:
      ValueError: for a class without `get_config`.

    Example:
      >>> import meshflow as tf
      >>> @tf.keras.saving.register_keras_serializable(package="zoo")
      ... class Penguin(tf.keras.layers.Layer):
      ...     pass
      >>> tf.keras.saving.get_registered_name(Penguin)
      'zoo>Penguin'
    """

    def decorate(target: Any) -> Any:
        if isinstance(target, type) and not hasattr(target, "get_config"):
            raise ValueError("Cannot register a class that does not have a get_config() method.")
        full = f"{package}>{name or target.__name__}"
        _custom[full] = target
        _names[target] = full
        return target

    return decorate


def call_it(function: T, name: str) -> T:
    """Gives a function another name in configurations than its own, which another function has.

    Args:
      function: the function.
      name: the name.
    """
    _names[function] = name
    return function


def get_registered_name(obj: Any) -> str:
    """The name a class or function was registered under, else its own.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.saving.get_registered_name(tf.keras.layers.Dense)
      'Dense'
    """
    return _names.get(obj, getattr(obj, "__name__", str(obj)))


def get_registered_object(name: str, custom_objects: Any = None, module_objects: Any = None) -> Any:
    """The class or function with a name, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.saving.get_registered_object("Length", custom_objects={"Length": len})("abc")
      3
    """
    for source in (custom_objects, _custom, module_objects):
        if source and name in source:
            return source[name]
    return None


def snake_case(name: str) -> str:
    """`MeanSquaredError` -> `mean_squared_error`."""
    spaced = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()


class Later(NamedTuple):
    """A thing of a module that is loaded when a configuration first names it."""

    module: str
    name: str

    def load(self) -> Any:
        """The thing."""
        return getattr(importlib.import_module(self.module), self.name)


class Family:
    """Things of one kind that configurations name: layers, losses, optimizers and so on.

    A name means what stands under it in `custom_objects`, among the registered objects, or in the family's
    table, and nothing else: it is never imported nor followed through attributes.

    Args:
      what: the kind of thing, for errors.
      table: classes and functions by name.
      module: the public module of its classes.
    """

    def __init__(
        self, what: str, table: dict[str, Any] | None = None, module: str | None = None
    ) -> None:
        self.what = what
        self.table = dict(table or {})
        self.module = module

    def add(self, *things: Any, **aliases: Any) -> None:
        """Lets configurations name further classes and functions.

        Args:
          *things: known by their own names.
          **aliases: known by other names.
        """
        self.table |= {thing.__name__: thing for thing in things} | aliases

    def find(self, name: Any, custom_objects: Any = None) -> Any:
        """What a name means, or None.

        Args:
          name: the name; as it is, or in other letters.
          custom_objects: further names.
        """
        if not isinstance(name, str):
            return None
        found = get_registered_object(name, custom_objects, self.table)
        found = found if found is not None else self.table.get(name.lower())
        return found.load() if isinstance(found, Later) else found

    def get(self, identifier: Any, custom_objects: Any = None) -> Any:
        """What an identifier means.

        Args:
          identifier: a name, a configuration, a class, an object or a function; None gives None.
          custom_objects: further names.

        Returns:
          An instance for names of classes and configurations; functions and objects as they are.

        Raises:
          ValueError: for an unknown name; close ones are listed.
        """
        if identifier is None:
            return None
        if isinstance(identifier, dict):
            return self._configured(identifier, custom_objects)
        if isinstance(identifier, str):
            found = self.find(identifier, custom_objects)
            if found is None:
                raise self._unknown(identifier)
            return found() if isinstance(found, type) else found
        if isinstance(identifier, type):
            return identifier()
        if callable(identifier):
            return identifier
        raise ValueError(f"Could not interpret {self.what} identifier: {identifier!r}")

    def deserialize(self, config: Any, custom_objects: Any = None) -> Any:
        """What a configuration describes; as `get`.

        Args:
          config: what `serialize` gave.
          custom_objects: further names.
        """
        return self.get(config, custom_objects)

    def _configured(self, identifier: dict[str, Any], custom_objects: Any) -> Any:
        name, config = identifier.get("class_name"), identifier.get("config", {})
        if not isinstance(name, str):
            raise ValueError(f"A configuration of a {self.what} needs a class_name: {identifier!r}")
        if name == "function" and isinstance(config, str):
            # Functions in the form of later versions of Keras.
            return self.get(config, custom_objects)
        registered = identifier.get("registered_name")
        found = (
            get_registered_object(registered, custom_objects)
            if isinstance(registered, str)
            else None
        )
        found = found if found is not None else self.find(name, custom_objects)
        if found is None:
            raise self._unknown(name)
        return found if not isinstance(found, type) else _made(found, config, custom_objects)

    def _unknown(self, name: str) -> ValueError:
        close = difflib.get_close_matches(name, self.table, n=5, cutoff=0.5)
        hint = (
            f" Did you mean {' or '.join(map(repr, close))}?"
            if close
            else f" Known are {sorted(self.table)}."
        )
        return ValueError(
            f"Unknown {self.what}: {name!r}. Please ensure you are using a `keras.utils.custom_object_scope` and that "
            f"this object is included in the scope.{hint}"
        )


def _made(cls: Any, config: Any, custom_objects: Any) -> Any:
    """An object of a class; a class of ours that does not find what it needs has a damaged configuration."""
    if not hasattr(cls, "from_config"):
        raise TypeError(
            f"Unable to reconstruct an instance of {cls.__name__}, which has a configuration: the class needs a "
            "classmethod `from_config` that takes it."
        )
    try:
        if "custom_objects" in inspect.signature(cls.from_config).parameters:
            return cls.from_config(config, custom_objects=custom_objects)
        # What the configuration names in turn is found among them, too.
        with custom_object_scope(custom_objects or {}):
            return cls.from_config(config)
    except (LookupError, AttributeError, TypeError) as error:
        # Of arguments that are there, but wrong, classes say so themselves.
        said = isinstance(error, TypeError) and " missing " not in str(error)
        if said or not cls.__module__.startswith("meshflow."):
            raise
        raise ValueError(f"The configuration of a {cls.__name__} is damaged: {error!r}.") from error


def family(what: str, module: str, table: dict[str, Any]) -> Family:
    """A new family, in which `deserialize_keras_object` looks too.

    Args:
      what: the kind of thing.
      module: the public module of its classes.
      table: classes and functions by name.
    """
    FAMILIES[what] = made = Family(what, table, module)
    return made


class _Layers(Family):
    """Layers, of which `clone_model` puts others in their places."""

    def __init__(self) -> None:
        super().__init__("layer", module="keras.layers")
        self._instead: contextvars.ContextVar[Any] = contextvars.ContextVar("instead", default=None)

    @contextlib.contextmanager
    def replaced(self, layers: dict[str, Any]) -> Iterator[None]:
        """Gives other layers for the configurations of some.

        Args:
          layers: layers by the names of those that they replace.
        """
        token = self._instead.set(layers)
        try:
            yield
        finally:
            self._instead.reset(token)

    def is_shared(self, layer: Any, entry: dict[str, Any]) -> bool:
        """Whether a layer was put in the place of one that a model calls.

        Args:
          layer: what was found for an entry.
          entry: the layer's entry in a model's configuration.
        """
        instead = self._instead.get() or {}
        return bool(entry["inbound_nodes"]) and any(found is layer for found in instead.values())

    def get(self, identifier: Any, custom_objects: Any = None) -> Any:
        """What an identifier means; see `Family`."""
        instead = self._instead.get()
        if instead and isinstance(identifier, dict):
            config = identifier.get("config")
            found = instead.get(config.get("name")) if isinstance(config, dict) else None
            if found is not None:
                return found
        return super().get(identifier, custom_objects)


class _Optimizers(Family):
    """The optimizers. Those of `optimizers.legacy` stand in the table as "legacy.adam"."""

    def _configured(self, identifier: dict[str, Any], custom_objects: Any) -> Any:
        name = identifier.get("class_name")
        names = (identifier.get("registered_name"), name)
        if isinstance(name, str) and not any(
            n and get_registered_object(n, custom_objects) for n in names
        ):
            # Keras 2.11 and later call their own optimizers "Custom>Adam".
            name = name.removeprefix("Custom>") if not name.startswith("legacy.") else name
            if _until_2_10(identifier) and f"legacy.{name.lower()}" in self.table:
                name = f"legacy.{name.lower()}"
            identifier = {**identifier, "class_name": name, "registered_name": None}
        return super()._configured(identifier, custom_objects)


def _until_2_10(identifier: dict[str, Any]) -> bool:
    """Whether a configuration is of an optimizer as they were until TensorFlow 2.10: unless it says otherwise."""
    config = identifier.get("config")
    if identifier.get("module") == "keras.optimizers.legacy":
        return True
    if not isinstance(config, dict) or not config:
        return False
    new = (
        identifier.get("module") == "keras.optimizers"
        or identifier["class_name"].startswith("Custom>")
        or "use_ema" in config
    )
    return bool(config.get("is_legacy_optimizer", not new))


FAMILIES: dict[str, Family] = {}
# Filled by the modules of layers and models; here because layers and optimizers are made of layers and optimizers.
LAYERS = _Layers()
FAMILIES["layer"] = LAYERS
OPTIMIZERS = FAMILIES["optimizer"] = _Optimizers("optimizer", module="keras.optimizers")

# Public modules of classes that are not in that of their family. What begins with `keras.src` was never public; files
# name it all the same.
_ELSEWHERE = {
    "Model": "keras",
    "Sequential": "keras",
    "Policy": "keras.mixed_precision",
    **dict.fromkeys(
        ("LossScaleOptimizer", "LossScaleOptimizerV3"),
        "keras.src.mixed_precision.loss_scale_optimizer",
    ),
    "RandomFourierFeatures": "keras.layers.experimental",
    "SyncBatchNormalization": "keras.layers.experimental",
    "Functional": "keras.src.engine.functional",
    **dict.fromkeys(
        ("TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty"),
        "keras.src.layers.core.tf_op_layer",
    ),
}


def public_module(cls: type) -> str | None:
    """The module that a configuration names for a class; None for classes that are not of Keras.

    Args:
      cls: the class.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.keras.registry import public_module
      >>> public_module(tf.keras.layers.Dense), public_module(tf.keras.optimizers.legacy.SGD), public_module(dict)
      ('keras.layers', 'keras.optimizers.legacy', 'builtins')
    """
    if not cls.__module__.startswith("meshflow."):
        return "builtins" if cls.__module__ == "builtins" else None
    return _home(cls)


@functools.cache
def _home(cls: type) -> str | None:
    if cls.__name__ in _ELSEWHERE:
        return _ELSEWHERE[cls.__name__]
    for known in FAMILIES.values():
        names = [name for name, thing in known.table.items() if _is_same(thing, cls)]
        if names and known.module:
            old = known is OPTIMIZERS and all(name.startswith("legacy.") for name in names)
            return f"{known.module}.legacy" if old else known.module
    return None


def _is_same(thing: Any, cls: type) -> bool:
    return thing is cls or (
        isinstance(thing, Later) and (thing.module, thing.name) == (cls.__module__, cls.__name__)
    )


# Whose names come first where nobody says what a name is of.
_ORDER = (
    *(
        "layer",
        "loss function",
        "metric function",
        "optimizer",
        "decay",
        "regularizer",
        "initializer",
    ),
    *("constraint", "activation function", "dtype policy"),
)


def everything() -> dict[str, Any]:
    """Classes and functions of all families by name."""
    table: dict[str, Any] = {}
    for what in reversed(_ORDER):
        table |= FAMILIES[what].table
    return table


def family_of(config: dict[str, Any], otherwise: Family) -> Family:
    """The family whose module a configuration names: several have classes of one name.

    Args:
      config: the configuration.
      otherwise: what is given where no family has that module.
    """
    module = config.get("module")
    if not isinstance(module, str):
        return otherwise
    found = (f for f in FAMILIES.values() if f.module == module.removesuffix(".legacy"))
    family = next(found, otherwise)
    known = family.find(config["class_name"]) is not None or config.get("registered_name")
    return family if known and family.module else otherwise


def name_table(*classes: Any, **aliases: Any) -> dict[str, Any]:
    """Names for `lookup`: each class or function by its own name and in snake case, and aliases."""
    table: dict[str, Any] = {}
    for item in classes:
        table[item.__name__] = item
        table.setdefault(snake_case(item.__name__), item)
        table.setdefault(item.__name__.lower(), item)
    return table | aliases
