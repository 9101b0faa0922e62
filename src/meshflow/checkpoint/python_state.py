"""State that is no variable, in a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np


class PythonState:
    """Base class of objects with a state of their own, saved as text or bytes.

    Subclasses define `serialize()`, which returns the state, and `deserialize(string_value)`, which
    takes it back.

    Example:
      >>> import meshflow as tf
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

    def serialize(self) -> str | bytes:
        """The state."""
        raise NotImplementedError("PythonState subclasses define `serialize`.")

    def deserialize(self, string_value: Any) -> None:
        """Takes a state back.

        Args:
          string_value: what `serialize` returned: text stays text, bytes stay bytes.
        """
        raise NotImplementedError("PythonState subclasses define `deserialize`.")

    def _checkpoint_children(self) -> dict[str, Any]:
        return {}

    def _checkpoint_value(self) -> np.ndarray:
        state = self.serialize()
        text = isinstance(state, str)
        data = state.encode() if isinstance(state, str) else bytes(state)
        # The first byte tells text from bytes.
        return np.frombuffer((b"t" if text else b"b") + data, np.uint8)

    def _restore_checkpoint_value(self, value: np.ndarray) -> None:
        data = value.tobytes()
        self.deserialize(data[1:].decode() if data[:1] == b"t" else data[1:])
