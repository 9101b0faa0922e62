"""Base class of objects that save Python state in a checkpoint."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from meshflow.checkpoint.object_graph import PYTHON_STATE


class PythonState(abc.ABC):
    """Base class of objects with state that is not in variables; a checkpoint stores it as bytes.

    Subclasses define `serialize()`, which returns the state as text or bytes, and
    `deserialize(string_value)`, which restores it
    from bytes.

    Raises:
      TypeError: If a subclass lacks one of them, or, while saving, if the state is neither text nor
        bytes.

    Example:
      >>> import os, tempfile
      >>> class Note(tf.train.experimental.PythonState):
      ...     text = ""
      ...     def serialize(self):
      ...         return self.text
      ...     def deserialize(self, string_value):
      ...         self.text = tf.compat.as_str(string_value)
      >>> note = Note()
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     note.text = "before"
      ...     path = tf.train.Checkpoint(note=note).save(os.path.join(folder, "ckpt"))
      ...     note.text = "after"
      ...     _ = tf.train.Checkpoint(note=note).restore(path)
      >>> note.text
      'before'
    """

    _checkpoint_attributes = (PYTHON_STATE,)

    @abc.abstractmethod
    def serialize(self) -> str | bytes:
        """Return the state."""

    @abc.abstractmethod
    def deserialize(self, string_value: bytes) -> None:
        """Restore a state.

        Args:
          string_value: Value that `serialize` returned, as bytes. Text is encoded in UTF-8.
        """

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        state = self.serialize()
        if not isinstance(state, (str, bytes)):
            raise TypeError(
                f"{type(self).__name__}.serialize() must return text or bytes, got {state!r}."
            )
        return {"": np.array(state.encode() if isinstance(state, str) else state, object)}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        value = values[""]
        # Older checkpoints store an array of bytes. Its first byte is the type (text or bytes).
        self.deserialize(value.tobytes()[1:] if value.dtype == np.uint8 else value.item())
