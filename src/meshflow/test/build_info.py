"""Queries of the devices and the build, by which tests skip themselves."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

from meshflow.core.config import config


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: object = None) -> bool:
    """Check whether a GPU is available.

    Args:
      cuda_only: Ignored.
      min_cuda_compute_capability: Ignored.
    """
    return bool(config.list_physical_devices("GPU"))


@functools.cache
def _create_temp_dir() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def get_temp_dir() -> str:
    """Return a directory that is deleted when the program ends: `tf.compat.v1.test.get_temp_dir`."""
    return _create_temp_dir().name


def gpu_device_name() -> str:
    """Return the name of the first GPU, or an empty string."""
    return "/device:GPU:0" if is_gpu_available() else ""


def is_built_with_cuda() -> bool:
    """Check whether JAX's CUDA plugin is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))


def is_built_with_rocm() -> bool:
    """Check whether JAX's ROCm plugin is installed."""
    return any(importlib.util.find_spec(f"jax_rocm{v}_plugin") for v in (60, 7))


def is_built_with_gpu_support() -> bool:
    """Check whether a GPU plugin of JAX is installed."""
    return is_built_with_cuda() or is_built_with_rocm()


def is_built_with_xla() -> bool:
    """Return True."""
    return True


def is_cpu_target_available(target: str) -> bool:
    """Check whether XLA can compile for a processor architecture; only the machine's own is known.

    Args:
      target: 'x86_64' or 'aarch64'.
    """
    return os.uname().machine == target


def disable_with_predicate(pred: Callable[[], bool], skip_message: str) -> Callable[..., Any]:
    """Create a decorator that skips a test if a condition holds.

    Args:
      pred: Function that is called when the test starts.
      skip_message: Reason for skipping.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: unittest.TestCase, *args: Any, **kwargs: Any) -> Any:
            if pred():
                self.skipTest(skip_message)
            return function(self, *args, **kwargs)

        wrapper.__name__ = function.__name__
        return wrapper

    return decorate
