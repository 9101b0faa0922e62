"""Names of `tf.distribute` that are not available yet."""

from __future__ import annotations

from meshflow.core.config.unavailable import NotAvailableError

LATER = {
    "ParameterServerStrategy": "parameter servers",
    "Server": "parameter servers",
    "coordinator": "parameter servers",
    "partitioners": "parameter servers",
}


def refuse_later(name: str) -> None:
    """Says that a name is not available yet.

    Args:
      name: the name in `tf.distribute`.

    Raises:
      NotAvailableError: when it is one of those.
    """
    if name in LATER:
        raise NotAvailableError(
            f"tf.distribute.{name}: training with {LATER[name]} is not available yet."
        )
