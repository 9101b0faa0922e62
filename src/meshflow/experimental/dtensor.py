"""`tf.experimental.dtensor`: tensors sharded by mesh and layout. Not available yet."""

from __future__ import annotations

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(f"tf.experimental.dtensor.{name}: DTensor is not available yet.")
