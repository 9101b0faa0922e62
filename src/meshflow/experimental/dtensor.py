"""`tf.experimental.dtensor`: tensors sharded by mesh and layout. Not available yet."""

from __future__ import annotations

from meshflow.core.errors import NotAvailableError

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotAvailableError(f"tf.experimental.dtensor.{name}: DTensor is not available yet.")
