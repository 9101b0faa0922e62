"""`tf.sysconfig`: where Meshflow is installed, and what it was built for.

There is no C++ library to build custom ops against: custom computations are `jax.ffi` handlers, whose headers are
those of `get_include`.
"""

from __future__ import annotations

import collections
import importlib.util
from pathlib import Path
from typing import Any

import jax.ffi

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

# XLA's handlers are C++17 against the C++11 ABI, which is what its wheels are built with.
CXX11_ABI_FLAG = 1
CXX_VERSION = 201703
MONOLITHIC_BUILD = 0


def get_include() -> str:
    """The folder of the C++ headers: XLA's, for handlers that `jax.ffi` registers.

    Example:
      >>> import meshflow as tf
      >>> import pathlib
      >>> pathlib.Path(tf.sysconfig.get_include(), "xla", "ffi", "api", "ffi.h").exists()
      True
    """
    return jax.ffi.include_dir()


def get_lib() -> str:
    """The folder of the package, where its compiled kernels are.

    Example:
      >>> import meshflow as tf
      >>> tf.sysconfig.get_lib().endswith("meshflow")
      True
    """
    return str(Path(__file__).parent)


def get_compile_flags() -> list[str]:
    """What a C++ compiler is told to find the headers.

    Example:
      >>> import meshflow as tf
      >>> tf.sysconfig.get_compile_flags()[1:]
      ['-D_GLIBCXX_USE_CXX11_ABI=1', '--std=c++17']
    """
    return [f"-I{get_include()}", f"-D_GLIBCXX_USE_CXX11_ABI={CXX11_ABI_FLAG}", "--std=c++17"]


def get_link_flags() -> list[str]:
    """What a linker is told: nothing, as handlers are given to XLA when they are registered.

    Example:
      >>> import meshflow as tf
      >>> tf.sysconfig.get_link_flags()
      []
    """
    return []


def get_build_info() -> collections.OrderedDict[str, Any]:
    """What the installed compiler was built for, under TensorFlow's names; versions are there for builds for GPUs.

    Example:
      >>> import meshflow as tf
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
