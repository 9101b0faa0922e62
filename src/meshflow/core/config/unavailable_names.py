"""Names of TensorFlow that Meshflow does not have, with their replacements."""

from __future__ import annotations

from meshflow.core.runtime.errors import NotAvailableError

REPLACEMENTS: dict[str, str] = {
    "estimator": "estimators are gone from TensorFlow too; use tf.keras.",
    "graph_util": "there are no graphs; see tf.function(...).get_concrete_function().graph.",
    "load_library": "write custom ops with jax.ffi or jax.experimental.pallas.",
    "load_op_library": "write custom ops with jax.ffi or jax.experimental.pallas.",
    "mlir": "see the MLIR of jax.jit(...).lower(...).",
    "queue": "use Python's queue or tf.data.",
    "raw_ops": "use the public function of the same op.",
    "replica_device_setter": (
        "it places the variables of version 1's graphs. Variables created in the scope of a "
        "tf.distribute.ParameterServerStrategy are distributed over the parameter servers in turn, or placed by "
        "tf.device('/job:ps/task:0')."
    ),
    "xla": "everything is compiled by XLA: tf.function(jit_compile=True) is the default.",
}


def raise_if_unavailable(name: str, package: str = "tf") -> None:
    """Raise an error if a name of TensorFlow is not available; do nothing for any other name.

    Raises:
      NotAvailableError: If the name is not available; the message describes a replacement. It is an
        `AttributeError`, too.
    """
    if name in REPLACEMENTS:
        raise NotAvailableError(f"{package}.{name}: {REPLACEMENTS[name]}")
