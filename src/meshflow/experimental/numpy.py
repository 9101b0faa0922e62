"""`tf.experimental.numpy`: NumPy's names on tensors. Not available yet."""

from __future__ import annotations

from meshflow.core.errors import NotAvailableError

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotAvailableError(
        f"tf.experimental.numpy.{name}: the NumPy front end is not available yet."
    )
