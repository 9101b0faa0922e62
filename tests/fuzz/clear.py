"""Which errors say what is wrong with a file."""

import meshflow as tf


def is_clear(error):
    """Whether an error is one of ours, or one that says what is wrong with a file."""
    ours = isinstance(error, (tf.errors.OpError, ValueError)) and type(error).__module__.startswith(
        "meshflow"
    )
    no_memory = "no memory" in str(error)
    return (ours or type(error) in (ValueError, OSError)) and not no_memory
