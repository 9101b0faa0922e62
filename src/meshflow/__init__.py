"""Meshflow: TensorFlow 2's training API on JAX and XLA.

`import meshflow as tf` runs training code that was written for TensorFlow 2. Names and behaviour
are those of TensorFlow 2.1 to 2.15; JAX performs all computations.

    >>> import meshflow as tf
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = tf.reduce_sum(x * x)
    >>> tape.gradient(y, x).numpy()
    array([2., 4.], dtype=float32)

The module `_api` defines the public names. It is loaded on first use of one of them, and enables
JAX's 64-bit types, which TensorFlow programs expect. `meshflow.passes` and `meshflow.kernels` are
usable in any JAX program and do not change JAX's defaults.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.environment.garbage_collection import freeze_imports as _leave_imports_alone
from meshflow.environment.garbage_collection import suspend_collector as _resting

with _resting:
    from meshflow.core.runtime import import_paths as _import_paths
    from meshflow.core.runtime.setup import configure as _configure

if TYPE_CHECKING:
    from meshflow._api import *

_configure()
_import_paths.install_finder()
_leave_imports_alone()


def _load_api() -> Any:
    """Load the public names and make them attributes of this module."""
    with _resting:
        api = importlib.import_module("meshflow._api")
    _leave_imports_alone()
    attributes = globals()
    for name in api.__dict__.keys() & {*api.__all__, "__all__"}:
        attributes.setdefault(name, api.__dict__[name])
    return api


def __getattr__(name: str) -> Any:
    if name in _import_paths.JAX_PACKAGES:
        return importlib.import_module(f"meshflow.{name}")
    if name.startswith("__") and name not in _PUBLIC_DUNDERS:
        raise AttributeError(name)
    api = _load_api()
    if name in api.__dict__:
        return getattr(api, name)
    with _resting:
        value = api.load_name(name)
    _leave_imports_alone()
    return value


def load_ipython_extension(shell: Any) -> None:
    """Make `import tensorflow` load Meshflow in a notebook: `%load_ext meshflow`."""
    importlib.import_module("meshflow.shims").activate()


# Public names that start and end with two underscores.
_PUBLIC_DUNDERS = ("__all__", "__version__", "__git_version__", "__compiler_version__") + (
    "__internal__",
    "__operators__",
    "__cxx11_abi_flag__",
    "__monolithic_build__",
)


def __dir__() -> list[str]:
    return [*__getattr__("__all__")]
