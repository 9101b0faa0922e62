"""JAX settings that Meshflow relies on, made before the first op."""

from __future__ import annotations

import os
import warnings

import jax

from meshflow.core.runtime import (
    compiled_programs,
    determinism,
    exported_lowerings,
    forks,
    lowering_contexts,
)
from meshflow.core.runtime.devices import (
    backend_started,
    emulated_tpus,
    make_virtual_cpus,
    size_thread_pool,
)
from meshflow.kernels import (
    adam,
    cross_entropy,
    epilogues,
    kernel_and_bias_gradient,
    library,
    lowerings,
    packing,
    renewals,
    running_sums,
    table_rows,
)


def configure() -> None:
    """Configure JAX, without starting a backend.

    * Compiled programs are cached in the user's cache folder, so a script does not compile again
      when it is started a second time (`compilation_cache.enable_cache`).
    * Programs are lowered in shared MLIR contexts, and exported programs without SciPy unless they
      call LAPACK.
    * Convolutions and matrix products on the CPU use oneDNN if it is installed.
    * `MESHFLOW_MAX_ISA` limits the vector extensions that XLA and the kernels use on the CPU.
    * A process forked after the devices were used raises an error instead of waiting for their
      threads.
    * `MESHFLOW_EMULATE_TPU` creates virtual devices that emulate TPUs.
    """
    forks.watch()
    if emulated_tpus():
        make_virtual_cpus(1)
    size_thread_pool()
    limited = library.limit()
    if limited not in (None, library.LEVELS[-1]):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa={limited}".strip()
        # XLA multiplies matrices with its own copy of oneDNN, which reads only this variable.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", library.ONEDNN_NAMES[limited])
    lowering_contexts.share()
    exported_lowerings.register()
    lowerings.register()
    epilogues.register()
    packing.register()
    cross_entropy.register()
    kernel_and_bias_gradient.register()
    running_sums.register()
    adam.register()
    renewals.register()
    table_rows.register()
    determinism.from_environment()
    compiled_programs.keep()


def allow_64_bits() -> None:
    """Enable JAX's 64-bit types, which TensorFlow has; Meshflow applies its own dtype rules.

    A program that already has JAX arrays is warned that JAX's default dtypes change.
    """
    # JAX defines its options at run time, so mypy does not know them.
    if not jax.config.jax_enable_x64 and backend_started() and jax.live_arrays():  # type: ignore[attr-defined]
        warnings.warn(
            "Meshflow turns on JAX's 64-bit types in this process (jax_enable_x64): arrays that JAX creates without "
            "an explicit dtype, such as jnp.ones(3), are float64 or int64 from now on. Specify their dtype, or turn "
            "on jax_enable_x64 yourself before the first array is created.",
            stacklevel=2,
        )
    jax.config.update("jax_enable_x64", True)
