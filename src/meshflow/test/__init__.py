"""`tf.test`: test cases, numerical gradients, and queries of the build."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.test.build_info import (
    disable_with_predicate,
    gpu_device_name,
    is_built_with_cuda,
    is_built_with_gpu_support,
    is_built_with_rocm,
    is_built_with_xla,
    is_cpu_target_available,
    is_gpu_available,
)
from meshflow.test.case import TestCase, main
from meshflow.test.gradients import compute_gradient

__all__ = [
    "TestCase",
    "compute_gradient",
    "disable_with_predicate",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_built_with_gpu_support",
    "is_built_with_rocm",
    "is_built_with_xla",
    "is_cpu_target_available",
    "is_gpu_available",
    "main",
]

_hide_frames(globals())
