"""`tf.tpu`: TPU settings; JAX detects TPUs automatically."""

from __future__ import annotations

from meshflow.tpu import experimental

__all__ = ["XLAOptions", "experimental"]


class XLAOptions:
    """XLA settings for TPUs. They have no effect, since XLA always partitions and shapes are static."""

    def __init__(
        self,
        use_spmd_for_xla_partitioning: bool = True,
        enable_xla_dynamic_padder: bool = True,
    ) -> None:
        self.use_spmd_for_xla_partitioning = use_spmd_for_xla_partitioning
        self.enable_xla_dynamic_padder = enable_xla_dynamic_padder
