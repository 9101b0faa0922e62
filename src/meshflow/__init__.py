"""Meshflow: the TensorFlow 2 training stack on JAX/XLA.

`import meshflow as tf` runs training code written for TensorFlow 2. Names and behaviour are
TensorFlow 2.1 to 2.15's; everything computes through JAX.

    >>> import meshflow as tf
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = tf.reduce_sum(x * x)
    >>> tape.gradient(y, x).numpy()
    array([2., 4.], dtype=float32)

The names, in `_face.py`, are there when one of them is first used, and JAX has 64-bit types from then on, as
TensorFlow has. `meshflow.passes` and `meshflow.kernels` are for any JAX program and leave JAX's defaults alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.collection import leave_imports_alone as _leave_imports_alone
from meshflow.core.runtime.collection import resting as _resting

with _resting:
    from meshflow.core.runtime import import_paths as _import_paths
    from meshflow.core.runtime.setup import configure as _configure

if TYPE_CHECKING:
    from meshflow._face import *

_configure()
_import_paths.install()
_leave_imports_alone()


def _show() -> Any:
    """Loads the names and makes them attributes of this module."""
    with _resting:
        face = importlib.import_module("meshflow._face")
    _leave_imports_alone()
    shown = globals()
    for name in face.__dict__.keys() & {*face.__all__, "__all__"}:
        shown.setdefault(name, face.__dict__[name])
    return face


def __getattr__(name: str) -> Any:
    if name in _import_paths.FOR_JAX:
        return importlib.import_module(f"meshflow.{name}")
    if name.startswith("__") and name not in _TOLD:
        raise AttributeError(name)
    face = _show()
    if name in face.__dict__:
        return getattr(face, name)
    with _resting:
        found = face.find(name)
    _leave_imports_alone()
    return found


# Names between underscores that are public.
_TOLD = ("__all__", "__version__", "__git_version__", "__compiler_version__") + (
    "__cxx11_abi_flag__",
    "__monolithic_build__",
)


def __dir__() -> list[str]:
    return [*__getattr__("__all__")]
