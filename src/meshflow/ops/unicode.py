"""Unicode ops of strings, on the host: characters, code points and encodings."""

from __future__ import annotations

import codecs
import functools
import math
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.dtypes import string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import defer_strings
from meshflow.ops.ragged import split_strings
from meshflow.ops.strings import (
    get_host_array,
    get_host_strings,
    make_string_tensor,
    map_strings,
    record_rows,
    split_each,
)

__all__ = [
    "unicode_decode",
    "unicode_decode_with_offsets",
    "unicode_encode",
    "unicode_script",
    "unicode_split",
    "unicode_split_with_offsets",
    "unicode_transcode",
]

_ERROR_MODES = ("replace", "strict", "ignore")


class _Decoding(threading.local):
    """The replacement of invalid bytes, and their ranges, in the string that a thread decodes."""

    def __init__(self) -> None:
        self.replacement = ""
        self.ranges: list[tuple[int, int]] = []


_decoding = _Decoding()


def _replace_invalid(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _decoding.ranges.append((error.start, error.end))
    return _decoding.replacement, error.end


codecs.register_error("meshflow.replace_invalid", _replace_invalid)


def _decode_string(
    word: bytes,
    encoding: str,
    errors: str,
    replacement: int = 0xFFFD,
    starts: list[int] | None = None,
) -> str:
    """Decode a string.

    Args:
      word: The string.
      encoding: Its encoding.
      errors: Treatment of invalid bytes.
      replacement: Code point that replaces invalid bytes.
      starts: A list that receives the byte offset of each character.
    """
    if errors not in _ERROR_MODES:
        raise ValueError(f"errors must be one of {_ERROR_MODES}, got {errors!r}.")
    if not 0 <= replacement < 0x110000:
        raise InvalidArgumentError("replacement_char out of unicode codepoint range")
    _decoding.replacement = chr(replacement) if errors == "replace" else ""
    ranges: list[tuple[int, int]] = []
    _decoding.ranges = ranges
    try:
        text = word.decode(encoding, "strict" if errors == "strict" else "meshflow.replace_invalid")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"Invalid formatting on input string: {error}") from None
    except LookupError:
        raise _make_encoding_error(encoding) from None
    if starts is None:
        return text
    position, ends = 0, dict(ranges)
    for character in text:
        if errors == "ignore":
            while position in ends:
                position = ends[position]
        starts.append(position)
        end = ends.get(position)
        position = position + len(character.encode(encoding)) if end is None else end
    return text


def _encode_string(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeError as error:
        raise InvalidArgumentError(f"Invalid code points: {error}") from None
    except LookupError:
        raise _make_encoding_error(encoding) from None


def _make_encoding_error(encoding: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Expected the name of an encoding, such as 'UTF-8' or 'UTF-16-BE', got {encoding!r:.100}."
    )


@dispatch_composites
def unicode_decode(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decode a string to its code points, a vector of int32.

    Args:
      input: A string scalar, or several strings, which become the rows of a ragged tensor.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: Treatment of invalid bytes: 'replace', 'strict' (raise an error) or 'ignore'.
      replacement_char: Code point that replaces invalid bytes.
      replace_control_characters: Whether to replace control characters, too.
      name: Ignored.

    Example:
      >>> print(tf.strings.unicode_decode("thé", "UTF-8").numpy())
      [116 104 233]
    """

    def decode_one(word: bytes) -> list[int]:
        text = _decode_string(word, input_encoding, errors, replacement_char)
        points = list(map(ord, text))
        if replace_control_characters:
            points = [replacement_char if p < 32 or 127 <= p < 160 else p for p in points]
        return points

    texts = get_host_strings(input, "unicode_decode")
    return split_strings(texts, decode_one, lambda points: Tensor(np.array(points, np.int32)))


@dispatch_composites
def unicode_encode(
    input: TensorLike,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor:
    """Encode the code points in the last axis as strings.

    Args:
      input: Integers of shape [..., n].
      output_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: Treatment of invalid code points: 'replace', 'strict' (raise an error) or 'ignore'.
      replacement_char: Code point that replaces invalid code points.
      name: Ignored.

    Example:
      >>> tf.strings.unicode_encode([116, 104, 233], "UTF-8").numpy().decode()
      'thé'
    """
    if not 0 <= replacement_char < 0x110000:
        raise InvalidArgumentError("replacement_char out of unicode codepoint range")
    array = get_host_array(input)
    rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    texts = ["".join(_to_character(int(p), errors, replacement_char) for p in row) for row in rows]
    return make_string_tensor([_encode_string(t, output_encoding) for t in texts], array.shape[:-1])


def _to_character(point: int, errors: str, replacement: int) -> str:
    is_surrogate = 0xD800 <= point < 0xE000
    # The last two code points of each plane, and 32 more, are reserved for internal use.
    is_reserved = point & 0xFFFE == 0xFFFE or 0xFDD0 <= point < 0xFDF0
    if 0 <= point < 0x110000 and not is_surrogate and not is_reserved:
        return chr(point)
    if errors == "strict":
        raise InvalidArgumentError(f"{point} is not a Unicode code point. [Op:UnicodeEncode]")
    return "" if errors == "ignore" else chr(replacement)


def list_characters(
    input: TensorLike, input_encoding: str, errors: str, replacement_char: int
) -> Tensor:
    """Return the characters of all strings of a vector."""
    characters: Tensor = unicode_split(input, input_encoding, errors, replacement_char).flat_values
    return characters


def count_characters(
    input: TensorLike, input_encoding: str, errors: str, replacement_char: int
) -> Tensor:
    """Return the number of characters of each string of a vector."""
    rows = unicode_split(input, input_encoding, errors, replacement_char)
    counts: Tensor = rows.row_lengths()
    return counts


@dispatch_composites
@record_rows(list_characters, count_characters)
def unicode_split(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor:
    """Split a string into its characters, a vector of strings.

    Args:
      input: A string scalar, or several strings, which become the rows of a ragged tensor.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: Treatment of invalid bytes: 'replace', 'strict' (raise an error) or 'ignore'.
      replacement_char: Code point that replaces invalid bytes.
      name: Ignored.

    Example:
      >>> [c.decode() for c in tf.strings.unicode_split("thé", "UTF-8").numpy()]
      ['t', 'h', 'é']
    """

    def split_one(word: bytes) -> list[bytes]:
        text = _decode_string(word, input_encoding, errors, replacement_char)
        return [_encode_string(c, input_encoding) for c in text]

    return split_each(input, "unicode_split", split_one)


@dispatch_composites
@defer_strings(string)
def unicode_transcode(
    input: TensorLike,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Tensor:
    """Convert strings to another encoding, keeping the shape.

    Args:
      input: Strings.
      input_encoding: Encoding of the strings.
      output_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: Treatment of invalid bytes: 'replace', 'strict' (raise an error) or 'ignore'.
      replacement_char: Code point that replaces invalid bytes.
      replace_control_characters: Whether to replace control characters, too.
      name: Ignored.

    Example:
      >>> tf.strings.unicode_transcode("é", "UTF-8", "UTF-16-BE").numpy().hex()
      '00e9'
    """

    def transcode(word: bytes) -> bytes:
        text = _decode_string(word, input_encoding, errors, replacement_char)
        if replace_control_characters:
            text = "".join(
                chr(replacement_char) if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in text
            )
        return _encode_string(text, output_encoding)

    return map_strings("unicode_transcode", transcode, input)


@functools.cache
def _read_scripts() -> tuple[np.ndarray, np.ndarray]:
    """Return the first code points of ranges with equal scripts, and the codes of the scripts."""
    text = Path(__file__).with_name("unicode_scripts.txt").read_text()
    pairs = [entry.split(":") for entry in text.split()]
    starts, codes = ([int(pair[i], 36) for pair in pairs] for i in (0, 1))
    # Numbers below and above the code points have the code -1.
    return np.array([*starts, 0x110000], np.int32), np.array([-1, *codes, -1], np.int32)


@op(kinds="i", differentiable=False)
def unicode_script(input: TensorLike, name: str | None = None) -> Tensor:
    """Find the writing system of code points.

    Args:
      input: Code points, int32, of any shape.
      name: Ignored.

    Returns:
      The numbers of the scripts in the library ICU (version 69), int32 with the shape of `input`, such as 25 for Latin; -1
      for other numbers than code points.

    Example:
      >>> tf.strings.unicode_script([ord("a"), ord("я"), ord("1"), -1]).numpy()
      array([25,  8,  0, -1], dtype=int32)
    """
    starts, codes = _read_scripts()
    index = jnp.searchsorted(starts, input, side="right")
    return jnp.take(jnp.asarray(codes), index)


def _compute_offsets(input: TensorLike, op: str, encoding: str, errors: str) -> Tensor:
    """Return the byte offset of each character; of several strings as the rows of a ragged tensor."""

    def compute_one(word: bytes) -> list[int]:
        starts: list[int] = []
        _decode_string(word, encoding, errors, starts=starts)
        return starts

    texts = get_host_strings(input, op)
    return split_strings(texts, compute_one, lambda sizes: Tensor(np.array(sizes, np.int64)))


@dispatch_composites
def unicode_decode_with_offsets(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode a string to its code points, and return the byte offset of each character.

    The arguments are those of `unicode_decode`.

    Returns:
      A pair: code points int32 [n] and byte offsets int64 [n]; ragged for several strings.

    Example:
      >>> points, offsets = tf.strings.unicode_decode_with_offsets("été", "UTF-8")
      >>> print(points.numpy(), offsets.numpy())
      [233 116 233] [0 2 3]
    """
    points = unicode_decode(
        input, input_encoding, errors, replacement_char, replace_control_characters
    )
    name = "unicode_decode_with_offsets"
    return points, _compute_offsets(input, name, input_encoding, errors)


@dispatch_composites
def unicode_split_with_offsets(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Split a string into its characters, and return the byte offset of each character.

    The arguments are those of `unicode_split`.

    Returns:
      A pair: characters [n] and byte offsets int64 [n]; ragged for several strings.

    Example:
      >>> characters, offsets = tf.strings.unicode_split_with_offsets("été", "UTF-8")
      >>> [c.decode() for c in characters.numpy()], offsets.numpy().tolist()
      (['é', 't', 'é'], [0, 2, 3])
    """
    characters = unicode_split(input, input_encoding, errors, replacement_char)
    name = "unicode_split_with_offsets"
    return characters, _compute_offsets(input, name, input_encoding, errors)
