"""`tf.experimental.numpy`: NumPy's names on tensors. Not available yet."""

from __future__ import annotations

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(f"tf.experimental.numpy.{name}: the NumPy front end is not available yet.")
