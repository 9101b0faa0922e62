"""Fingerprints of SavedModels: `fingerprint.pb`, by which programs tell models apart without reading them."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshflow.environment.protobuf_wire import bytes_field, fields, number_field
from meshflow.files import gfile
from meshflow.files.paths import text

__all__ = ["FINGERPRINT_FILE", "Fingerprint", "read_fingerprint", "written"]

FINGERPRINT_FILE = "fingerprint.pb"
# Numbers of the fields of the message, and of the number of the version in its field.
_HASHES = {
    1: "saved_model_checksum",
    2: "graph_def_program_hash",
    3: "signature_def_hash",
    4: "saved_object_graph_hash",
    5: "checkpoint_hash",
}
_VERSION, _PRODUCER = 6, 1


@dataclasses.dataclass(repr=False)
class Fingerprint:
    """What tells a SavedModel from others: hashes of its parts, all unsigned numbers of 64 bits.

    Args:
      saved_model_checksum: of `saved_model.pb`, byte by byte.
      graph_def_program_hash: of the nodes of its graph.
      signature_def_hash: of its signatures.
      saved_object_graph_hash: of its functions' arguments and results.
      checkpoint_hash: of the index of its variables, which has checksums of their values.
      version: of the rules by which the hashes were made; two fingerprints are equal also when it differs.

    Example:
      >>> import meshflow as tf
      >>> tf.saved_model.experimental.Fingerprint(1, 2, 3, 4, 5, 6).singleprint()
      '2/3/4/5'
    """

    saved_model_checksum: int | None = None
    graph_def_program_hash: int | None = None
    signature_def_hash: int | None = None
    saved_object_graph_hash: int | None = None
    checkpoint_hash: int | None = None
    version: Any = dataclasses.field(default=None, compare=False)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_proto(cls, proto: Any) -> Fingerprint:
        """The fingerprint that a message holds.

        Args:
          proto: a `FingerprintDef`, or its bytes.

        Raises:
          ValueError: for what is none.
        """
        if isinstance(proto, bytes):
            return _decoded(proto)
        try:
            hashes = {name: getattr(proto, name) for name in _HASHES.values()}
            return cls(**hashes, version=proto.version)
        except AttributeError as error:
            raise ValueError(
                f"Given proto could not be deserialized as fingerprint: {error}."
            ) from None

    def singleprint(self) -> str:
        """One text of what does not depend on how files are written: all hashes but the first.

        Raises:
          ValueError: when one is missing.
        """
        parts = (
            self.graph_def_program_hash,
            self.signature_def_hash,
            self.saved_object_graph_hash,
            self.checkpoint_hash,
        )
        if not all(isinstance(part, int) for part in parts):
            raise ValueError(
                f"Encountered invalid fingerprint values when constructing singleprint: {self!r} has hashes that "
                "are no numbers."
            )
        return "/".join(map(str, parts))

    def __str__(self) -> str:
        lines = [f"  {name}: {getattr(self, name)}" for name in _HASHES.values()]
        return "\n".join(["SavedModel Fingerprint", *lines])

    def __repr__(self) -> str:
        return f"Fingerprint({', '.join(str(getattr(self, name)) for name in _HASHES.values())})"


def _decoded(message: bytes) -> Fingerprint:
    found = Fingerprint(0, 0, 0, 0, 0, 0)
    for number, value in fields(message):
        if number in _HASHES and isinstance(value, int):
            setattr(found, _HASHES[number], value)
        elif number == _VERSION and isinstance(value, bytes):
            found.version = next((v for n, v in fields(value) if n == _PRODUCER), 0)
    return found


def written(fingerprint: Fingerprint) -> bytes:
    """A fingerprint as the content of its file.

    Args:
      fingerprint: one with all its numbers.
    """
    hashes = [number_field(n, getattr(fingerprint, name)) for n, name in _HASHES.items()]
    about = number_field(_PRODUCER, fingerprint.version)
    return b"".join([*hashes, bytes_field(_VERSION, about)])


def read_fingerprint(export_dir: Any) -> Fingerprint:
    """The fingerprint of a SavedModel.

    Args:
      export_dir: the model's folder.

    Returns:
      A `Fingerprint`.

    Raises:
      FileNotFoundError: when the folder has none, as those that were written before there were fingerprints.
      RuntimeError: when it is damaged.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> tf.saved_model.save(tf.Module(), folder)
      >>> read = tf.saved_model.experimental.read_fingerprint
      >>> read(folder) == read(folder), read(folder).checkpoint_hash > 0
      (True, True)
    """
    path = gfile.join(text(export_dir), FINGERPRINT_FILE)
    if not gfile.exists(path):
        raise FileNotFoundError(
            f"SavedModel Fingerprint Error: no fingerprint at {path}. Save the model again to get one."
        )
    try:
        with gfile.GFile(path, "rb") as file:
            return _decoded(file.read())
    except ValueError as error:
        raise RuntimeError(f"SavedModel Fingerprint Error: {path} is damaged: {error}.") from None
