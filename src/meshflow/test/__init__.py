"""`tf.test`: test cases, numerical gradients, and queries of the build."""

from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.test import experimental
from meshflow.test.benchmark import Benchmark, benchmark_config, with_eager_op_as_function
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
    "Benchmark",
    "TestCase",
    "benchmark_config",
    "compute_gradient",
    "disable_with_predicate",
    "experimental",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_built_with_gpu_support",
    "is_built_with_rocm",
    "is_built_with_xla",
    "is_cpu_target_available",
    "is_gpu_available",
    "main",
    "with_eager_op_as_function",
]

_hide_frames(globals())

__getattr__ = _explain_names("tf.test")
