"""Fingerprints of SavedModels: `fingerprint.pb`, which identifies a model without reading it."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshflow.environment.protobuf_wire import (
    encode_bytes_field,
    encode_integer_field,
    iterate_fields,
)
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.contained_files import check_contained
from meshflow.files.paths import to_path_string

FINGERPRINT_FILE = "fingerprint.pb"
# Field numbers of the message, and of the version number in the version field.
_HASH_FIELDS = {
    1: "saved_model_checksum",
    2: "graph_def_program_hash",
    3: "signature_def_hash",
    4: "saved_object_graph_hash",
    5: "checkpoint_hash",
}
_VERSION_FIELD, _PRODUCER_FIELD = 6, 1


@dataclasses.dataclass(repr=False)
class Fingerprint:
    """Fingerprint of a SavedModel: hashes of its parts, unsigned 64-bit integers.

    Args:
      saved_model_checksum: Hash of the bytes of `saved_model.pb`.
      graph_def_program_hash: Hash of the nodes of its graph.
      signature_def_hash: Hash of its signatures.
      saved_object_graph_hash: Hash of the arguments and results of its functions.
      checkpoint_hash: Hash of the index of its variables, which has checksums of their values.
      version: Version of the hashing rules. It is ignored when fingerprints are compared.

    Example:
      >>> tf.saved_model.experimental.Fingerprint(1, 2, 3, 4, 5, 6).singleprint()
      '2/3/4/5'
    """

    saved_model_checksum: int | None = None
    graph_def_program_hash: int | None = None
    signature_def_hash: int | None = None
    saved_object_graph_hash: int | None = None
    checkpoint_hash: int | None = None
    version: int | None = dataclasses.field(default=None, compare=False)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_proto(cls, proto: Any) -> Fingerprint:
        """Create a fingerprint from a message.

        Args:
          proto: A `FingerprintDef`, or its bytes.

        Raises:
          ValueError: If it is not such a message.
        """
        if isinstance(proto, bytes):
            return _decode_fingerprint(proto)
        try:
            hashes = {name: getattr(proto, name) for name in _HASH_FIELDS.values()}
            return cls(**hashes, version=proto.version)
        except AttributeError as error:
            raise ValueError(
                f"Given proto could not be deserialized as fingerprint: {error}."
            ) from None

    def singleprint(self) -> str:
        """Join the hashes that do not depend on the encoding of files, which are all but the first.

        Raises:
          ValueError: If a hash is missing.
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
                "are not integers."
            )
        return "/".join(map(str, parts))

    def __str__(self) -> str:
        lines = [f"  {name}: {getattr(self, name)}" for name in _HASH_FIELDS.values()]
        return "\n".join(["SavedModel Fingerprint", *lines])

    def __repr__(self) -> str:
        return (
            f"Fingerprint({', '.join(str(getattr(self, name)) for name in _HASH_FIELDS.values())})"
        )


def _decode_fingerprint(message: bytes) -> Fingerprint:
    fingerprint = Fingerprint(0, 0, 0, 0, 0, 0)
    for number, value in iterate_fields(message):
        if number in _HASH_FIELDS and isinstance(value, int):
            setattr(fingerprint, _HASH_FIELDS[number], value)
        elif number == _VERSION_FIELD and isinstance(value, bytes):
            fingerprint.version = next(
                (
                    v
                    for n, v in iterate_fields(value)
                    if n == _PRODUCER_FIELD and isinstance(v, int)
                ),
                0,
            )
    return fingerprint


def encode_fingerprint(fingerprint: Fingerprint) -> bytes:
    """Encode a fingerprint as the content of its file.

    Args:
      fingerprint: Fingerprint with all hashes and a version.
    """
    hashes = [
        encode_integer_field(n, getattr(fingerprint, name)) for n, name in _HASH_FIELDS.items()
    ]
    version = encode_integer_field(_PRODUCER_FIELD, fingerprint.version or 0)
    return b"".join([*hashes, encode_bytes_field(_VERSION_FIELD, version)])


def read_fingerprint(export_dir: StrPath) -> Fingerprint:
    """Read the fingerprint of a SavedModel.

    Args:
      export_dir: Folder of the SavedModel.

    Returns:
      A `Fingerprint`.

    Raises:
      FileNotFoundError: If the folder has none, because an old version wrote it.
      RuntimeError: If the file is damaged.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.saved_model.save(tf.Module(), folder)
      >>> read = tf.saved_model.experimental.read_fingerprint
      >>> read(folder) == read(folder), read(folder).checkpoint_hash > 0
      (True, True)
    """
    path = gfile.join(to_path_string(export_dir), FINGERPRINT_FILE)
    if not gfile.exists(path):
        raise FileNotFoundError(
            f"SavedModel Fingerprint Error: no fingerprint at {path}. Save the model again to get one."
        )
    try:
        with gfile.GFile(check_contained(path, to_path_string(export_dir)), "rb") as file:
            return _decode_fingerprint(file.read())
    except ValueError as error:
        raise RuntimeError(f"SavedModel Fingerprint Error: {path} is damaged: {error}.") from None
