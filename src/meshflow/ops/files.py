"""`tf.io`: reading and writing files, raw bytes, text tables. All of it happens on the host."""

from __future__ import annotations

import base64
import binascii
import functools
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from meshflow.core.dispatch.operands import known_strings
from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from meshflow.core.values.convert import from_python
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.ops.deferred_host_values import waits, waits_for_text

__all__ = [
    "decode_base64",
    "decode_compressed",
    "decode_raw",
    "encode_base64",
    "match_filenames_once",
    "matching_files",
    "read_file",
    "write_file",
]


F = TypeVar("F", bound=Callable[..., Any])


class FileContents(Tensor):
    """A file's content, which remembers the file for errors.

    Args:
      contents: the bytes.
      path: the file.
    """

    __slots__ = ("path",)

    def __init__(self, contents: bytes, path: str) -> None:
        super().__init__(np.array(contents, object))
        self.path = path


def names_file(decode: F) -> F:
    """Makes errors of a function that decodes bytes begin with the file that they were read from.

    Args:
      decode: the function; the bytes are its first argument.
    """

    @functools.wraps(decode)
    def named(contents: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return decode(contents, *args, **kwargs)
        except (InvalidArgumentError, DataLossError, ResourceExhaustedError) as error:
            if not isinstance(contents, FileContents):
                raise
            raise type(error)(f"{contents.path}: {error}") from None

    return cast(F, named)


def host_bytes(value: TensorLike, use: str) -> np.ndarray:
    """Strings on the host.

    Raises:
      InvalidArgumentError: for an operand that is none.
      OperatorNotAllowedInGraphError: while they are only known at run time.
    """
    return known_strings(value, f"{use} (XLA has no strings)", use)


@waits(lambda *_, **__: TensorSpec([], string))
def read_file(filename: Any, name: str | None = None) -> Tensor:
    """A file's content as a string.

    Args:
      filename: the path.
      name: ignored.

    Returns:
      A string scalar.

    Raises:
      NotFoundError: naming the file, when there is none.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/note.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.read_file(path).numpy()
      b'tea'
    """
    with gfile.GFile(filename, "rb") as file:
        return FileContents(file.read(), text(filename))


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Writes a string to a file, which is replaced when all is written; its folder is made.

    Args:
      filename: the path.
      contents: a string scalar.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/new folder/note.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.exists(path)
      True
    """
    content = host_bytes(contents, "the contents of a file")[()]
    with replacing(filename) as file:
        file.write(content)


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """Paths of files that match a pattern, sorted.

    Args:
      pattern: a pattern or a list of patterns.
      name: ignored.

    Returns:
      A vector of strings.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> for name in ("b.txt", "a.txt", "c.png"):
      ...     tf.io.write_file(f"{folder}/{name}", "")
      >>> [path[-5:] for path in tf.io.matching_files(folder + "/*.txt").numpy()]
      [b'a.txt', b'b.txt']
    """
    patterns = host_bytes(pattern, "a pattern").reshape(-1).tolist()
    found = [p.encode() for p in gfile.glob(patterns) if not gfile.isdir(p)]
    return Tensor(np.array(sorted(found), object))


def decode_raw(
    input_bytes: TensorLike,
    out_type: Any,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> Tensor:
    r"""Bytes read as numbers, along a new last dimension.

    Args:
      input_bytes: strings of one length.
      out_type: dtype of the numbers.
      little_endian: whether the lowest byte comes first.
      fixed_length: bytes taken of each string, which is cut or filled with zeros.
      name: ignored.

    Returns:
      Tensor of shape [*input_bytes.shape, n].

    Raises:
      InvalidArgumentError: when the strings differ in length, or have parts of numbers.

    Example:
      >>> import meshflow as tf
      >>> tf.io.decode_raw(b"\x01\x00\x02\x00", tf.int16).numpy()
      array([1, 2], dtype=int16)
    """
    words = host_bytes(input_bytes, "bytes to decode")
    kind = as_dtype(out_type)
    flat = words.reshape(-1).tolist()
    if fixed_length is not None:
        flat = [w[:fixed_length].ljust(fixed_length, b"\0") for w in flat]
    if len({len(w) for w in flat}) > 1:
        raise InvalidArgumentError(
            f"DecodeRaw requires input strings to all be the same size, got {sorted({len(w) for w in flat})} bytes."
        )
    size = len(flat[0]) if flat else 0
    if size % kind.size:
        raise InvalidArgumentError(
            f"Input to DecodeRaw has length {size} that is not a multiple of {kind.size}, the size of {kind.name}"
        )
    stored = np.dtype(kind.dtype)
    if stored.kind in "iufc" and stored.itemsize > 1:
        stored = stored.newbyteorder("<" if little_endian else ">")
    array = np.frombuffer(b"".join(flat), stored).astype(kind.dtype)
    return from_python(array.reshape(*words.shape, size // kind.size), kind)


@waits_for_text(string)
def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings in the web-safe base64 alphabet.

    Args:
      input: strings.
      pad: whether '=' fills up to a multiple of four characters.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.io.encode_base64("tea?").numpy(), tf.io.encode_base64("tea?", pad=True).numpy()
      (b'dGVhPw', b'dGVhPw==')
    """
    words = host_bytes(input, "a string")
    coded = [base64.urlsafe_b64encode(w) for w in words.reshape(-1)]
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = coded if pad else [c.rstrip(b"=") for c in coded]
    return Tensor(result)


@waits_for_text(string)
def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """Strings from the web-safe base64 alphabet, padded or not.

    Args:
      input: strings.
      name: ignored.

    Raises:
      InvalidArgumentError: for a string with other characters, or of an impossible length.

    Example:
      >>> import meshflow as tf
      >>> tf.io.decode_base64("dGVhPw").numpy()
      b'tea?'
    """
    words = host_bytes(input, "a string")
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = [_from_base64(w) for w in words.reshape(-1)]
    return Tensor(result)


def _from_base64(word: bytes) -> bytes:
    bare = word.rstrip(b"=")
    try:
        return base64.b64decode(bare + b"=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise InvalidArgumentError(
            f"Invalid character found in base64: {word!r} is not web-safe base64."
        ) from None


def decode_compressed(
    bytes: TensorLike, compression_type: str = "", name: str | None = None
) -> Tensor:
    """Strings, decompressed.

    Args:
      bytes: strings.
      compression_type: '', 'GZIP' or 'ZLIB'.
      name: ignored.

    Raises:
      ValueError: for another compression.
      DataLossError: for a string that is not compressed so.
      ResourceExhaustedError: for one that would be longer than 1 GiB, or 20 times as long as it is where that is
        more; the environment's MESHFLOW_MAX_UNPACKED_BYTES sets another number of bytes.

    Example:
      >>> import zlib
      >>> import meshflow as tf
      >>> tf.io.decode_compressed(zlib.compress(b"text"), "ZLIB").numpy()
      b'text'
    """
    if compression_type not in ("", "GZIP", "ZLIB"):
        raise ValueError(
            f"compression_type must be '', 'GZIP' or 'ZLIB', got {compression_type!r}."
        )
    words = host_bytes(bytes, "a compressed string")
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = [
        inflated(w, compression_type) if compression_type else w for w in words.reshape(-1)
    ]
    return Tensor(result)


def inflated(data: bytes, compression: str) -> bytes:
    """A string, decompressed up to `unpacked_limit`.

    Args:
      data: the string.
      compression: 'GZIP' or 'ZLIB'.

    Raises:
      DataLossError: for a string that is not compressed so.
      ResourceExhaustedError: for one that would be too long.
    """
    limit = unpacked_limit(len(data))
    wide = zlib.MAX_WBITS + 16 if compression == "GZIP" else zlib.MAX_WBITS
    inflate = zlib.decompressobj(wide)
    try:
        found = inflate.decompress(data, limit)
    except zlib.error as error:
        raise DataLossError(f"A string is not compressed by {compression}: {error}") from None
    if not inflate.eof and len(found) == limit:
        raise ResourceExhaustedError(
            f"A string of {len(data):,} bytes holds more than {limit:,} when decompressed. If you trust its "
            f"author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
        )
    if not inflate.eof:
        raise DataLossError(f"A string is not compressed by {compression}: it ends early")
    return found


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Tensor:
    """The files that patterns match; `matching_files` under its name in input queues.

    Args:
      pattern: a pattern with wildcards, or several.
      name: ignored.
    """
    return matching_files(pattern)
