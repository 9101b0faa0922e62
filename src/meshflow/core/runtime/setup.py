"""JAX settings that Meshflow relies on, made before the first op."""

from __future__ import annotations

import os
import warnings

import jax

from meshflow.core.runtime import (
    compilation_cache,
    determinism,
    exported_lowerings,
    forks,
    lowering_contexts,
    philox,
)
from meshflow.core.runtime.devices import (
    count_emulated_tpus,
    create_virtual_cpus,
    is_backend_started,
    set_thread_pool_size,
)
from meshflow.environment import linearization
from meshflow.environment.jax_internals import call_before_cache_writes
from meshflow.kernels import (
    adam,
    array_updates,
    attention,
    colors,
    column_sums,
    cross_entropy,
    epilogues,
    kernel_and_bias_gradient,
    library,
    lowerings,
    packing,
    recurrent,
    running_sums,
    table_rows,
    warping,
)


def configure() -> None:
    """Configure JAX, without starting a backend.

    * Compiled programs are cached in the user's cache folder, so a script does not compile again
      when it is started a second time (`compilation_cache.enable_cache`).
    * Programs are lowered in shared MLIR contexts, and exported programs without SciPy unless they
      call LAPACK. Arrays that are too large for XLA raise an error.
    * JAX linearizes the most common primitives by rules that need less time to trace.
    * Convolutions and matrix products on the CPU use oneDNN if it is installed.
    * `MESHFLOW_MAX_ISA` limits the vector extensions that XLA and the kernels use on the CPU.
    * A process forked after the devices were used raises an error instead of waiting for their
      threads.
    * `MESHFLOW_EMULATE_TPU` creates virtual devices that emulate TPUs.
    """
    forks.register_fork_handler()
    if count_emulated_tpus():
        create_virtual_cpus(1)
    set_thread_pool_size()
    limited = library.read_isa_limit()
    if limited not in (None, library.ISA_LEVELS[-1]):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa={limited}".strip()
        # XLA multiplies matrices with its own copy of oneDNN, which reads only this variable.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", library.ONEDNN_NAMES[limited])
    lowering_contexts.install_shared_contexts()
    lowering_contexts.install_size_limit()
    exported_lowerings.register_lowering()
    linearization.install_rules()
    lowerings.register()
    epilogues.register()
    packing.register()
    cross_entropy.register()
    kernel_and_bias_gradient.register()
    column_sums.register()
    recurrent.register()
    running_sums.register()
    colors.register()
    warping.register()
    adam.register()
    array_updates.register()
    table_rows.register()
    attention.register(philox.draw_uniform_at)
    determinism.enable_from_environment()
    # Writing a program allocates memory for its code, while the compiler's is free but still resident.
    call_before_cache_writes(library.trim_heap)
    compilation_cache.enable_cache()


def enable_64_bit_types() -> None:
    """Enable JAX's 64-bit types, which TensorFlow has; Meshflow applies its own dtype rules.

    A program that already has JAX arrays is warned that JAX's default dtypes change.
    """
    # JAX defines its options at run time, so mypy does not know them.
    if not jax.config.jax_enable_x64 and is_backend_started() and jax.live_arrays():  # type: ignore[attr-defined]
        warnings.warn(
            "Meshflow turns on JAX's 64-bit types in this process (jax_enable_x64): arrays that JAX creates without "
            "an explicit dtype, such as jnp.ones(3), are float64 or int64 from now on. Specify their dtype, or turn "
            "on jax_enable_x64 yourself before the first array is created.",
            stacklevel=2,
        )
    jax.config.update("jax_enable_x64", True)
