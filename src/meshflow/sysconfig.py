"""`tf.sysconfig`: location and build settings of the installation.

Custom ops are `jax.ffi` handlers, compiled with the headers of `get_include`; there is no C++
library to link against.
"""

from __future__ import annotations

import collections
import importlib.util
from pathlib import Path
from typing import Any

import jax.ffi

from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.version import COMPILER_VERSION

__all__ = [
    "CXX11_ABI_FLAG",
    "CXX_VERSION",
    "MONOLITHIC_BUILD",
    "get_build_info",
    "get_compile_flags",
    "get_include",
    "get_lib",
    "get_link_flags",
]

# XLA's handlers are C++17 and use the C++11 ABI, with which its wheels are built.
CXX11_ABI_FLAG = 1
CXX_VERSION = 201703
MONOLITHIC_BUILD = 0


def get_include() -> str:
    """Return the folder of XLA's C++ headers for `jax.ffi` handlers.

    Example:
      >>> import pathlib
      >>> pathlib.Path(tf.sysconfig.get_include(), "xla", "ffi", "api", "ffi.h").exists()
      True
    """
    return jax.ffi.include_dir()


def get_lib() -> str:
    """Return the folder of the package, which contains its compiled kernels.

    Example:
      >>> tf.sysconfig.get_lib().endswith("meshflow")
      True
    """
    return str(Path(__file__).parent)


def get_compile_flags() -> list[str]:
    """Return the flags of a C++ compiler for the headers of `get_include`.

    Example:
      >>> tf.sysconfig.get_compile_flags()[1:]
      ['-D_GLIBCXX_USE_CXX11_ABI=1', '--std=c++17']
    """
    return [f"-I{get_include()}", f"-D_GLIBCXX_USE_CXX11_ABI={CXX11_ABI_FLAG}", "--std=c++17"]


def get_link_flags() -> list[str]:
    """Return the flags of a linker: none, because handlers are registered at run time.

    Example:
      >>> tf.sysconfig.get_link_flags()
      []
    """
    return []


def get_build_info() -> collections.OrderedDict[str, Any]:
    """Return the build settings under TensorFlow's names; GPU versions only if JAX has GPU plugins.

    Example:
      >>> tf.sysconfig.get_build_info()["is_tensorrt_build"]
      False
    """
    info: collections.OrderedDict[str, Any] = collections.OrderedDict()
    plugins = [n for n in (13, 12) if importlib.util.find_spec(f"jax_cuda{n}_plugin") is not None]
    info["cpu_compiler"] = COMPILER_VERSION
    if plugins:
        info["cuda_version"] = str(plugins[0])
    info["is_cuda_build"] = bool(plugins)
    info["is_rocm_build"] = any(
        importlib.util.find_spec(f"jax_rocm{n}_plugin") is not None for n in (60, 7)
    )
    info["is_tensorrt_build"] = False
    return info


__getattr__ = _explain_names("tf.sysconfig")
