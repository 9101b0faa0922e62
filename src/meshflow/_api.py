"""Public names of `meshflow`; the package loads this module on first use of one of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.setup import enable_64_bit_types as _allow_64_bits

_allow_64_bits()

from meshflow.core.config.unavailable_names import raise_if_unavailable as _raise_for

# TensorFlow defines these names, too.
__cxx11_abi_flag__, __monolithic_build__ = 1, 0

if TYPE_CHECKING:
    # Editors and type checkers need the names that `load_name` loads on first use.
    pass

# These modules are loaded on first use, because their imports take time and many programs need few
# of them.
_LAZY_MODULES = (
    *(
        "audio",
        "autodiff",
        "autograph",
        "data",
        "distribute",
        "dtypes",
        "experimental",
        "image",
        "io",
        "keras",
        "lite",
        "lookup",
        "mixed_precision",
        "profiler",
        "quantization",
        "signal",
    ),
    *("saved_model", "sets", "sparse", "summary", "sysconfig", "test", "tpu", "train", "types"),
)
# Names in modules that are loaded on first use.
_LAZY_NAMES = {
    "OptionalSpec": "meshflow.data.optional",
    "make_ndarray": "meshflow.io.tensors",
    "make_tensor_proto": "meshflow.io.tensors",
}
# Paths of modules that differ from their public names.
_MODULE_PATHS = {
    **{n: f"meshflow.legacy.{n}" for n in ("compat", "feature_column")},
    **{n: f"meshflow.keras.{n}" for n in ("initializers", "losses", "metrics", "optimizers")},
}
# TensorFlow 1 names of Keras initializers.
_KERAS_INITIALIZERS = {
    "constant_initializer": "Constant",
    "ones_initializer": "Ones",
    "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform",
    "zeros_initializer": "Zeros",
}

__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "load_name", "importlib", "Any", "TYPE_CHECKING", "core", "ops"}
    | {*_LAZY_MODULES, *_MODULE_PATHS, *_KERAS_INITIALIZERS, *_LAZY_NAMES, "__version__"}
)


def load_name(name: str) -> Any:
    """Load a public name on first use."""
    if name in _MODULE_PATHS:
        return importlib.import_module(_MODULE_PATHS[name])
    if name in _KERAS_INITIALIZERS:
        initializers = importlib.import_module("meshflow.keras.initializers")
        return getattr(initializers, _KERAS_INITIALIZERS[name])
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f"meshflow.{name}")
    _raise_for(name)
    raise AttributeError(f"module 'meshflow' has no attribute {name!r}")
