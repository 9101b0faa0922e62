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
    """Configures JAX; touches no backend.

    * Compiled programs are kept in the user's cache folder, so that a script started a second
      time does not compile again (`compiled_programs.keep`).
    * Programs are lowered in MLIR contexts that they share, exported ones without SciPy unless they need it.
    * Convolutions and matrix products on the CPU go to oneDNN where it is installed.
    * `MESHFLOW_MAX_ISA` limits the vector extensions that XLA uses on the CPU, as it does for the kernels.
    * A process forked after the devices were used raises an error instead of waiting for their threads.
    * Under `MESHFLOW_EMULATE_TPU` there are virtual devices that stand for TPUs.
    """
    forks.watch()
    if emulated_tpus():
        make_virtual_cpus(1)
    size_thread_pool()
    limited = library.limit()
    if limited not in (None, library.LEVELS[-1]):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa={limited}".strip()
        # XLA multiplies matrices by a oneDNN of its own, which hears of nothing else.
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
    """Makes 64-bit types exist: TensorFlow has them, and dtypes are decided by our own rules.

    Who has arrays of JAX already is told that JAX makes others from now on.
    """
    # JAX defines its options at run time.
    if not jax.config.jax_enable_x64 and backend_started() and jax.live_arrays():  # type: ignore[attr-defined]
        warnings.warn(
            "Meshflow turns on JAX's 64-bit types in this process (jax_enable_x64): arrays that JAX makes without a "
            "dtype, such as jnp.ones(3), are float64 or int64 from now on. Give their dtype, or turn it on yourself "
            "before the first array is made.",
            stacklevel=2,
        )
    jax.config.update("jax_enable_x64", True)
