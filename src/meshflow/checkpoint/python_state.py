"""State that is no variable, in a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.checkpoint.graph import STATE


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

    _checkpoint_attributes = (STATE,)

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

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        state = self.serialize()
        if isinstance(state, str):
            # TensorFlow gives bytes back for either; the second entry tells text.
            return {"": np.array(state.encode(), object), "-encoding": np.array(b"utf-8", object)}
        return {"": np.array(bytes(state), object)}

    def _restore_checkpoint_values(self, attribute: str, values: dict[str, np.ndarray]) -> None:
        value = values[""]
        if value.dtype == np.uint8:
            # Of our older checkpoints; the first byte tells text from bytes.
            data = value.tobytes()
            self.deserialize(data[1:].decode() if data[:1] == b"t" else data[1:])
        else:
            self.deserialize(value.item().decode() if "-encoding" in values else value.item())
