"""Modules named like TensorFlow's, which look their attributes up in Meshflow's public modules."""

from __future__ import annotations

import copyreg
import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.values.composite import CompositeTensor
from meshflow.shims.module_table import (
    CLASS_MODULES,
    EMPTY_MODULES,
    MODULES,
    PACKAGES,
    PRIVATE_PREFIXES,
    REMOVED_MODULES,
    RENAMED_PREFIXES,
)

__all__ = ["ShimModule", "UnavailableName", "convert_package"]

_PUBLIC_PACKAGE = __name__.partition(".")[0]
_TENSORFLOW = "tensorflow"
_PUBLIC_PATHS = {_TENSORFLOW: "tf", "keras": "tf.keras", "tf_keras": "tf.keras"}
_VERSION_NAMES = ("__version__", "VERSION")
# Attributes of the module itself, which a namespace must not replace.
_OWN_ATTRIBUTES = frozenset({*vars(ModuleType(__name__)), "__file__", "__path__", "__builtins__"})
# Modules of generated functions, which have the parameters of raw ops.
_GENERATED_PREFIXES = ("python.ops.gen_", "python.training.training_ops")
# Decorators `tf_export` of TensorFlow 2.14: module, and private names with the paths of their public names.
_PRIVATE_NAMES = Path(__file__).with_name("private_names.txt")
# Endings of TensorFlow's private names, for example of `DatasetV2` and `softmax_v2`.
_VERSION_SUFFIX = re.compile(r"_?[vV][12]$")


class UnavailableName:
    """A name of TensorFlow that Meshflow does not have; a call or an instance of a subclass raises an error.

    Libraries define subclasses and read attributes when they are imported, so both are possible.

    Args:
      name: Full name, for example `tensorflow.python.framework.ops.enable_tensor_equality`.
      reason: Message of the error. Default: the name is private, without a public equivalent.
    """

    def __init__(self, name: str, reason: str = "") -> None:
        self._name = name
        self._reason = reason or (
            f"{name} is private to TensorFlow, and no public name of TensorFlow is equivalent to it, so Meshflow "
            "does not have it. Use TensorFlow's public API instead."
        )

    def __repr__(self) -> str:
        return f"<unavailable name {self._name}>"

    def __getattr__(self, name: str) -> UnavailableName:
        if _is_dunder(name):
            raise AttributeError(name)
        return UnavailableName(f"{self._name}.{name}", self._reason)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise `NotAvailableError`."""
        raise NotAvailableError(self._reason)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type]:
        # A class cannot have the same base twice.
        return (type(self._name.rpartition(".")[2], (), {"__new__": self.__call__}),)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False


class ShimModule(ModuleType):
    """A module that looks its attributes up in other modules; assignments reach the module that has them."""

    # A leaf module may list explicit names, and a public module has exactly one namespace.
    _namespaces: tuple[str, ...]
    _names: dict[str, str]
    _is_public: bool

    def __getattr__(self, name: str) -> Any:
        value = self._find_value(name)
        owner = next(_load_namespaces(self._namespaces), None)
        if not isinstance(value, ShimModule) and _is_public_module(owner, name, value):
            return importlib.import_module(f"{self.__name__}.{name}")
        if name in _VERSION_NAMES and isinstance(value, str):
            # Programs convert the parts of TensorFlow's version to integers.
            value = value.partition("+")[0]
        if not _is_dunder(name):
            self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name not in _OWN_ATTRIBUTES and not isinstance(value, ShimModule):
            owner = self._find_owner(name)
            if owner is not None:
                originals = self.__dict__.setdefault("_originals", {})
                originals.setdefault(name, getattr(owner, name))
                setattr(owner, name, value)

    def __delattr__(self, name: str) -> None:
        # `mock.patch` deletes its value if the name was not loaded before it.
        owner = self._find_owner(name)
        self.__dict__.pop(name, None)
        originals = self.__dict__.get("_originals", {})
        if owner is not None and name in originals:
            setattr(owner, name, originals.pop(name))
        elif owner is not None:
            delattr(owner, name)

    def __dir__(self) -> list[str]:
        names = {name for n in _load_namespaces(self._namespaces) for name in dir(n)}
        own = dict(self.__dict__)
        if self._is_public:
            # Names that the namespace itself imports are no public names, even if they were read.
            own = {n: v for n, v in own.items() if _is_dunder(n) or isinstance(v, ModuleType)}
        return sorted(names | own.keys() | self._names.keys())

    def _list_exports(self) -> list[str]:
        """List the names that `from module import *` imports from a private module."""
        tokens = MODULES.get(_get_key(self.__name__), "").split()
        own = [token for token in tokens if "=" not in token] or self._namespaces
        names = {name for namespace in _load_namespaces(own) for name in dir(namespace)}
        return sorted(name for name in names | self._names.keys() if not name.startswith("_"))

    def _find_value(self, name: str) -> Any:
        if name == "__all__" and not self._is_public:
            return self._list_exports()
        is_named = name in self.__dict__.get("_names", ())
        if _is_dunder(name) and not is_named and (name in _OWN_ATTRIBUTES or not self._is_public):
            raise AttributeError(name)
        full_name, key = f"{self.__name__}.{name}", _get_key(self.__name__)
        if key in EMPTY_MODULES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if self._is_public:
            (namespace,) = _load_namespaces(self._namespaces)
            try:
                value = getattr(namespace, name)
            except AttributeError as error:
                if name == "__version__" and self.__name__ != _TENSORFLOW:
                    return sys.modules[_TENSORFLOW].__version__
                if _is_known_module(full_name):
                    return importlib.import_module(full_name)
                if isinstance(error, NotAvailableError):
                    return UnavailableName(full_name, str(error))
                message = f"module {self.__name__!r} has no attribute {name!r}"
                raise AttributeError(message) from None
            is_private = isinstance(value, ModuleType) and not _is_public_module(
                namespace, name, value
            )
            if is_private and _is_known_module(full_name):
                # Meshflow's own module has the name of one of an earlier version of Keras.
                return importlib.import_module(full_name)
            return value
        if name in self._names:
            try:
                return _load_object(self._names[name])
            except (AttributeError, ImportError):
                return UnavailableName(full_name)
        can_be_module = key in PACKAGES and name.islower()
        if _is_known_module(full_name) or (can_be_module and not key.startswith("keras.")):
            return importlib.import_module(full_name)
        if key.startswith(_GENERATED_PREFIXES):
            op = _find_generated_op(name)
            if op is not None:
                return op
        bare_name, is_v2 = _VERSION_SUFFIX.sub("", name), name.lower().endswith("v2")
        for candidate in dict.fromkeys([name, bare_name]):
            owner = self._find_owner(candidate, skip_v1=is_v2 and candidate == bare_name)
            if owner is not None:
                return getattr(owner, candidate)
        if can_be_module:
            return importlib.import_module(full_name)
        if key.startswith("python.ops."):
            # Modules such as `array_ops` import their generated functions.
            if name.startswith("gen_"):
                return importlib.import_module(f"tensorflow.python.ops.{name}")
            op = _find_generated_op(name) if name.islower() else None
            if op is not None:
                return op
        return UnavailableName(full_name, self._find_reason())

    def _find_reason(self) -> str:
        """Return why a public namespace of the module does not exist."""
        for name in self._namespaces:
            try:
                _load_object(name)
            except NotAvailableError as error:
                return str(error)
            except (AttributeError, ImportError):
                continue
        return ""

    def _find_owner(self, name: str, *, skip_v1: bool = False) -> Any:
        """Return the first namespace with a public attribute, or None; `skip_v1` leaves out those of `tf.compat.v1`."""
        paths = [p for p in self._namespaces if not (skip_v1 and p.startswith("tf.compat.v1"))]
        for namespace in _load_namespaces(paths):
            try:
                value = getattr(namespace, name)
            except (AttributeError, ImportError):
                continue
            if not isinstance(value, ModuleType) or _is_public_module(namespace, name, value):
                return namespace
        return None


def _find_generated_op(name: str) -> Any:
    """Return the raw op for a function of a module such as `gen_nn_ops`: `ReluGrad` for `relu_grad`."""
    raw_ops = _load_object("tf.raw_ops")
    key = name.replace("_", "")
    raw_name = next((op for op in dir(raw_ops) if op.lower() == key), None)
    if raw_name is None:
        return None
    try:
        return _load_object("meshflow.raw_ops.operations:bind_positional")(raw_name)
    except NotAvailableError:
        return None


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_public_module(namespace: Any, name: str, value: object) -> bool:
    """Check whether an attribute is a public module, not one that the namespace uses itself."""
    # Modules with a function `__dir__` have lazily loaded names.
    has_names = "__dir__" in getattr(namespace, "__dict__", {})
    names = dir(namespace) if has_names else getattr(namespace, "__all__", [name])
    return (
        isinstance(value, ModuleType)
        and value.__name__.startswith((f"{_PUBLIC_PACKAGE}.", "tf."))
        and (_is_dunder(name) or name in names)
    )


def _load_namespaces(names: Sequence[str]) -> Iterator[Any]:
    """Yield the namespaces that exist."""
    for name in names:
        try:
            yield _load_object(name)
        except (AttributeError, ImportError):
            continue


def _load_object(name: str) -> Any:
    """Load an object by a name of the table: `tf.nn.relu` is public, other names contain the name of a module."""
    root, _, path = name.partition(".")
    if root != "tf":
        return pkgutil.resolve_name(name)
    value: Any = sys.modules[_PUBLIC_PACKAGE]
    for part in filter(None, path.split(".")):
        value = getattr(value, part)
    return value


def _get_key(full_name: str) -> str:
    """Return the name of a module in the table, which is the same for its copies in TensorFlow and Keras."""
    for prefix, replacement in RENAMED_PREFIXES.items():
        if full_name == prefix or full_name.startswith(f"{prefix}."):
            return f"{replacement}{full_name[len(prefix) :]}"
    return full_name


@functools.cache
def _read_private_names() -> dict[str, dict[str, str]]:
    """Return the public names of private functions and classes with other names, by module."""
    rows = (line.split() for line in _PRIVATE_NAMES.read_text().splitlines())
    return {
        f"python.{module}": {
            name: f"tf.{path}" for name, _, path in (n.partition("=") for n in names)
        }
        for module, *names in rows
    }


def _iterate_prefixes(key: str) -> Iterator[str]:
    """Yield a dotted name, its parent, and so on."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _is_known_module(full_name: str) -> bool:
    key = _get_key(full_name)
    return key in MODULES or key in PACKAGES


def _make_public(module: ShimModule, namespace: ModuleType, path: str) -> None:
    state = module.__dict__
    state.update(_namespaces=(path,), _names={}, _is_public=True)
    state.setdefault("__file__", getattr(namespace, "__file__", None))
    state["__doc__"] = namespace.__doc__
    # `vars(module)` has the names that are loaded.
    for name, value in vars(namespace).items():
        if not isinstance(value, ModuleType) and not name.startswith("_") and name != "VERSION":
            state.setdefault(name, value)


def _make_private(module: ShimModule, key: str) -> None:
    namespaces: list[str] = []
    names = dict(_read_private_names().get(key, {}))
    for prefix in _iterate_prefixes(key):
        if prefix.startswith("keras.src."):
            # `keras.src.layers.core.dense` has names of `keras.layers`.
            namespaces.append(f"tf.keras{prefix.removeprefix('keras.src')}")
        for token in MODULES.get(prefix, "").split():
            name, has_target, target = token.partition("=")
            if not has_target:
                namespaces.append(token)
            elif prefix == key:
                names[name] = target
    module.__dict__.update(
        _namespaces=tuple(dict.fromkeys(namespaces)), _names=names, _is_public=False
    )
    module.__file__ = __file__


class _ShimLoader(Loader):
    """Loader of a module with the attributes of a public module, or with names of the table."""

    def __init__(self, namespace: ModuleType | None, path: str) -> None:
        self._namespace, self._path = namespace, path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ShimModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._namespace is None:
            _make_private(module, self._path)  # type: ignore[arg-type]
        else:
            _make_public(module, self._namespace, self._path)  # type: ignore[arg-type]
        if module.__name__.endswith("_pb2"):
            # Generated modules of libraries import the modules of the files that they need.
            _load_object("meshflow.shims.proto_files:declare_module")(module.__name__)


class _ShimFinder(MetaPathFinder):
    """A finder of the submodules of `tensorflow`, `keras`, `tf_keras` and `tensorflow_estimator`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent_name, _, name = fullname.rpartition(".")
        parent = sys.modules.get(parent_name)
        if not isinstance(parent, ShimModule):
            return None
        if fullname in REMOVED_MODULES:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: {REMOVED_MODULES[fullname]}", name=fullname
            )
        key = _get_key(fullname)
        if parent._is_public or not _is_known_module(fullname):
            for path in parent._namespaces:
                owner = next(_load_namespaces([path]), None)
                namespace = getattr(owner, name, None)
                if _is_public_module(owner, name, namespace):
                    return ModuleSpec(
                        fullname, _ShimLoader(namespace, f"{path}.{name}"), is_package=True
                    )
        if _is_known_module(fullname) or fullname.startswith(PRIVATE_PREFIXES):
            return ModuleSpec(fullname, _ShimLoader(None, key), is_package=True)
        return None


def _reduce_composite(path: tuple[str, str], value: CompositeTensor) -> tuple[Any, ...]:
    """Return the parts of a pickle that programs without the shims can load."""
    return _restore_composite, (*path, vars(value))


def _restore_composite(module: str, name: str, state: dict[str, Any]) -> CompositeTensor:
    cls = getattr(importlib.import_module(module), name)
    value: CompositeTensor = cls.__new__(cls)
    vars(value).update(state)
    return value


def convert_package(name: str) -> None:
    """Convert an imported package to a shim of the public package, and make its submodules importable.

    Args:
      name: Name of the package: `tensorflow`, `keras`, `tf_keras` or `tensorflow_estimator`.
    """
    if not any(isinstance(finder, _ShimFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ShimFinder())
    module = sys.modules[name]
    module.__class__ = ShimModule
    if name == _TENSORFLOW:
        for public_name, class_module in CLASS_MODULES.items():
            cls = _load_object(public_name)
            class_path = cls.__module__, cls.__qualname__
            if class_path[0] != class_module and issubclass(cls, CompositeTensor):
                copyreg.pickle(cls, functools.partial(_reduce_composite, class_path))
            cls.__module__ = class_module
    path = _PUBLIC_PATHS.get(name)
    if path is None:
        _make_private(module, _get_key(name))  # type: ignore[arg-type]
    else:
        _make_public(module, _load_object(path), path)  # type: ignore[arg-type]
