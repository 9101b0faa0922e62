"""`tf.tpu`: TPUs, which JAX finds by itself."""

from __future__ import annotations

from meshflow.tpu import experimental

__all__ = ["XLAOptions", "experimental"]


class XLAOptions:
    """Settings of XLA on TPUs; accepted, since XLA always partitions and shapes are static.

    Args:
      use_spmd_for_xla_partitioning: accepted.
      enable_xla_dynamic_padder: accepted.
    """

    def __init__(
        self,
        use_spmd_for_xla_partitioning: bool = True,
        enable_xla_dynamic_padder: bool = True,
    ) -> None:
        self.use_spmd_for_xla_partitioning = use_spmd_for_xla_partitioning
        self.enable_xla_dynamic_padder = enable_xla_dynamic_padder
