"""`tf.io`: read and write files, and decode raw bytes and base64, on the host."""

from __future__ import annotations

import base64
import binascii
import functools
import inspect
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from meshflow.core.dispatch.operands import get_strings
from meshflow.core.dispatch.shape_probing import vary_sizes
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    InvalidValueError,
    ResourceExhaustedError,
)
from meshflow.core.values.convert import convert_python_value
from meshflow.core.values.dtypes import DTypeLike, as_dtype, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.limits import UNPACKED_VARIABLE, get_unpacked_limit
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string
from meshflow.ops.deferred_host_values import DeferredValue, defer_host_values, defer_strings
from meshflow.ops.ragged import RaggedTensor

F = TypeVar("F", bound=Callable[..., Any])


class FileContents(Tensor):
    """Content of a file, with its path for error messages.

    Args:
      contents: The bytes.
      path: The file.
    """

    __slots__ = ("path",)

    def __init__(self, contents: bytes, path: str) -> None:
        super().__init__(np.array(contents, object))
        self.path = path


def add_path_to_errors(decode: F) -> F:
    """Decorate a function that decodes bytes: errors start with the path of the file that was read.

    Args:
      decode: The function; the bytes are its first argument.
    """

    @functools.wraps(decode)
    def public(contents: TensorLike, *args: Any, **kwargs: Any) -> Any:
        try:
            return decode(contents, *args, **kwargs)
        except (InvalidArgumentError, DataLossError, ResourceExhaustedError) as error:
            if not isinstance(contents, FileContents):
                raise
            raise type(error)(f"{contents.path}: {error}") from None

    return cast(F, public)


def to_host_strings(value: TensorLike, use: str) -> np.ndarray:
    """Return strings on the host, as an object array of bytes.

    Args:
      value: A string tensor.
      use: Description of the strings, for errors.

    Raises:
      InvalidArgumentError: If the operand does not contain strings.
      OperatorNotAllowedInGraphError: If the strings are only known at run time.
    """
    return get_strings(value, f"{use} (XLA has no strings)", use)


@defer_host_values(lambda *_, **__: TensorSpec([], string))
def read_file(filename: StrPath | TensorLike, name: str | None = None) -> Tensor:
    """Read a file as a string scalar.

    Raises:
      NotFoundError: If the file does not exist.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/note.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.read_file(path).numpy()
      b'tea'
    """
    with gfile.GFile(filename, "rb") as file:
        return FileContents(file.read(), to_path_string(filename))


def write_file(
    filename: StrPath | TensorLike, contents: TensorLike, name: str | None = None
) -> None:
    """Write a string to a file atomically; missing parent folders are created.

    Example:
      >>> import tempfile
      >>> path = tempfile.mkdtemp() + "/new folder/note.txt"
      >>> tf.io.write_file(path, "tea")
      >>> tf.io.gfile.exists(path)
      True
    """
    content = to_host_strings(contents, "the contents of a file")[()]
    if context.size_probe is not None and context.size_probe.size:
        # The function runs only to determine shapes, and its strings may be invented.
        return
    with replace_file(filename) as file:
        file.write(content)


def matching_files(pattern: TensorLike, name: str | None = None) -> Tensor:
    """Return the sorted paths of the files that match a pattern, a vector of strings.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> for name in ("b.txt", "a.txt", "c.png"):
      ...     tf.io.write_file(f"{folder}/{name}", "")
      >>> [path[-5:] for path in tf.io.matching_files(folder + "/*.txt").numpy()]
      [b'a.txt', b'b.txt']
    """
    patterns = to_host_strings(pattern, "a pattern").reshape(-1).tolist()
    paths = [p.encode() for p in gfile.glob(patterns) if not gfile.isdir(p)]
    return Tensor(np.array(sorted(paths), object))


def _defer_raw(function: F) -> F:
    """Decorate `decode_raw` so that it accepts the string of each element."""

    @functools.wraps(function)
    def public(input_bytes: PyTree, out_type: DTypeLike, *args: Any, **kwargs: Any) -> PyTree:
        if not isinstance(input_bytes, DeferredValue):
            return function(input_bytes, out_type, *args, **kwargs)

        def decode(texts: Tensor) -> PyTree:
            if len(set(map(len, texts.array.tolist()))) == 1:
                return function(texts, out_type, *args, **kwargs)
            rows = [function(text, out_type, *args, **kwargs).numpy() for text in texts.array]
            return RaggedTensor.from_row_lengths(np.concatenate(rows), list(map(len, rows)))

        bound = inspect.signature(function).bind(input_bytes, out_type, *args, **kwargs)
        length, dtype = bound.arguments.get("fixed_length"), as_dtype(out_type)
        size = None if length is None else length // dtype.size
        return context.host_recorder.parse(input_bytes, decode, TensorSpec([size], dtype))

    return cast(F, public)


@dispatch_composites
@_defer_raw
def decode_raw(
    input_bytes: TensorLike,
    out_type: DTypeLike,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> Tensor:
    r"""Reinterpret the bytes of strings as numbers, along a new last dimension.

    Args:
      input_bytes: Strings of the same length.
      out_type: The dtype of the numbers.
      little_endian: Whether the least significant byte is first.
      fixed_length: Number of bytes to use from each string, which is truncated or padded with
        zeros.
      name: Ignored.

    Returns:
      Tensor of shape [*input_bytes.shape, n].

    Raises:
      InvalidArgumentError: If the strings differ in length, or their length is not a multiple of
        the size of a number.

    Example:
      >>> tf.io.decode_raw(b"\x01\x00\x02\x00", tf.int16).numpy()
      array([1, 2], dtype=int16)
    """
    words = to_host_strings(input_bytes, "bytes to decode")
    dtype = as_dtype(out_type)
    flat = words.reshape(-1).tolist()
    if fixed_length is not None:
        flat = [w[:fixed_length].ljust(fixed_length, b"\0") for w in flat]
    if len({len(w) for w in flat}) > 1:
        raise InvalidArgumentError(
            f"DecodeRaw requires input strings to all be the same size, got {sorted({len(w) for w in flat})} bytes."
        )
    size = len(flat[0]) if flat else 0
    if size % dtype.size:
        raise InvalidArgumentError(
            f"Input to DecodeRaw has length {size} that is not a multiple of {dtype.size}, the size of {dtype.name}"
        )
    stored = np.dtype(dtype.dtype)
    if stored.kind in "iufc" and stored.itemsize > 1:
        stored = stored.newbyteorder("<" if little_endian else ">")
    array = np.frombuffer(b"".join(flat), stored).astype(dtype.dtype)
    numbers = vary_sizes(array.reshape(*words.shape, size // dtype.size), -1)
    return convert_python_value(numbers, dtype)


@dispatch_composites
@defer_strings(string)
def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """Encode strings in the web-safe base64 alphabet.

    Args:
      input: Strings.
      pad: Whether to append '=' up to a multiple of four characters.
      name: Ignored.

    Example:
      >>> tf.io.encode_base64("tea?").numpy(), tf.io.encode_base64("tea?", pad=True).numpy()
      (b'dGVhPw', b'dGVhPw==')
    """
    words = to_host_strings(input, "a string")
    coded = [base64.urlsafe_b64encode(w) for w in words.reshape(-1)]
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = coded if pad else [c.rstrip(b"=") for c in coded]
    return Tensor(result)


@dispatch_composites
@defer_strings(string)
def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """Decode strings from the web-safe base64 alphabet, padded or not.

    Raises:
      InvalidArgumentError: If a string contains other characters or has an impossible length.

    Example:
      >>> tf.io.decode_base64("dGVhPw").numpy()
      b'tea?'
    """
    words = to_host_strings(input, "a string")
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = [_decode_word(w) for w in words.reshape(-1)]
    return Tensor(result)


def _decode_word(word: bytes) -> bytes:
    unpadded = word.rstrip(b"=")
    try:
        return base64.b64decode(
            unpadded + b"=" * (-len(unpadded) % 4), altchars=b"-_", validate=True
        )
    except binascii.Error:
        raise InvalidArgumentError(
            f"Invalid character found in base64: {word!r} is not web-safe base64."
        ) from None


@dispatch_composites
def decode_compressed(
    bytes: TensorLike, compression_type: str = "", name: str | None = None
) -> Tensor:
    """Decompress strings.

    Args:
      bytes: Strings.
      compression_type: '', 'GZIP' or 'ZLIB'.
      name: Ignored.

    Raises:
      ValueError: For another compression.
      DataLossError: If a string does not have this compression.
      ResourceExhaustedError: If a decompressed string would exceed 1 GiB and 20 times the
        compressed size; the environment variable MESHFLOW_MAX_UNPACKED_BYTES sets another limit.

    Example:
      >>> import zlib
      >>> tf.io.decode_compressed(zlib.compress(b"text"), "ZLIB").numpy()
      b'text'
    """
    if compression_type not in ("", "GZIP", "ZLIB"):
        raise InvalidValueError(
            f"compression_type must be '', 'GZIP' or 'ZLIB', got {compression_type!r}."
        )
    words = to_host_strings(bytes, "a compressed string")
    result = np.empty(words.shape, object)
    result.reshape(-1)[:] = [
        decompress(w, compression_type) if compression_type else w for w in words.reshape(-1)
    ]
    return Tensor(result)


def decompress(data: bytes, compression: str) -> bytes:
    """Decompress a string of at most `get_unpacked_limit()` bytes.

    Args:
      data: The compressed bytes.
      compression: 'GZIP' or 'ZLIB'.

    Raises:
      DataLossError: If the string does not have this compression.
      ResourceExhaustedError: If the result would be too long.
    """
    limit = get_unpacked_limit(len(data))
    window_bits = zlib.MAX_WBITS + 16 if compression == "GZIP" else zlib.MAX_WBITS
    inflate = zlib.decompressobj(window_bits)
    try:
        content = inflate.decompress(data, limit)
    except zlib.error as error:
        raise DataLossError(f"A string is not compressed by {compression}: {error}") from None
    if not inflate.eof and len(content) == limit:
        raise ResourceExhaustedError(
            f"A string of {len(data):,} bytes holds more than {limit:,} when decompressed. If you trust its "
            f"author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
        )
    if not inflate.eof:
        raise DataLossError(f"A string is not compressed by {compression}: it is truncated")
    return content


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Tensor:
    """Return the paths of the files that match patterns, like `matching_files`."""
    return matching_files(pattern)
