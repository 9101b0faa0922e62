"""Characters and code points of strings, computed on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.dtypes import string
from meshflow.core.values.tensor import Tensor
from meshflow.ops.deferred_host_values import waits_for_text
from meshflow.ops.strings import _known as known
from meshflow.ops.strings import _map as mapped
from meshflow.ops.strings import _one as one
from meshflow.ops.strings import _strings as string_tensor

__all__ = [
    "unicode_decode",
    "unicode_decode_with_offsets",
    "unicode_encode",
    "unicode_split",
    "unicode_split_with_offsets",
    "unicode_transcode",
]

_ERRORS = ("replace", "strict", "ignore")


def _decode(word: bytes, encoding: str, errors: str) -> str:
    if errors not in _ERRORS:
        raise ValueError(f"errors must be one of {_ERRORS}, got {errors!r}.")
    try:
        return word.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"Invalid formatting on input string: {error}") from None


def unicode_decode(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Tensor:
    """The code points of one string, a scalar: a vector of int32.

    Args:
      input: a string; of several strings the result would be ragged, which is not available.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to bytes that are no character.
      replacement_char: code point that stands for them.
      replace_control_characters: whether control characters are replaced too.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.unicode_decode("thé", "UTF-8").numpy())
      [116 104 233]
    """
    text = _decode(one(input, "unicode_decode"), input_encoding, errors)
    points = [replacement_char if c == "\ufffd" else ord(c) for c in text]
    if replace_control_characters:
        points = [replacement_char if p < 32 or 127 <= p < 160 else p for p in points]
    return Tensor(np.array(points, np.int32))


def unicode_encode(
    input: Any,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor:
    """Strings from code points in the last dimension.

    Args:
      input: integers of shape [..., n].
      output_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to numbers that are no character.
      replacement_char: code point that stands for them.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.unicode_encode([116, 104, 233], "UTF-8").numpy().decode()
      'thé'
    """
    array = known(input)
    rows = array.reshape(-1, array.shape[-1])
    texts = ["".join(_character(int(p), errors, replacement_char) for p in row) for row in rows]
    return string_tensor([t.encode(output_encoding) for t in texts], array.shape[:-1])


def _character(point: int, errors: str, replacement: int) -> str:
    if 0 <= point < 0x110000 and not 0xD800 <= point < 0xE000:
        return chr(point)
    if errors == "strict":
        raise InvalidArgumentError(f"{point} is not a Unicode code point. [Op:UnicodeEncode]")
    return "" if errors == "ignore" else chr(replacement)


def unicode_split(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> Tensor:
    """The characters of one string, a scalar: a vector of strings.

    Args:
      input: a string; of several strings the result would be ragged, which is not available.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to bytes that are no character.
      replacement_char: code point that stands for them.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> [c.decode() for c in tf.strings.unicode_split("thé", "UTF-8").numpy()]
      ['t', 'h', 'é']
    """
    text = _decode(one(input, "unicode_split"), input_encoding, errors)
    replaced = text.replace("\ufffd", chr(replacement_char))
    return string_tensor([c.encode(input_encoding) for c in replaced])


@waits_for_text(string)
def unicode_transcode(
    input: Any,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Tensor:
    """Strings in another encoding.

    The result has the shape of the argument.

    Args:
      input: strings.
      input_encoding: their encoding.
      output_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to bytes that are no character.
      replacement_char: code point that stands for them.
      replace_control_characters: whether control characters are replaced too.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.unicode_transcode("é", "UTF-8", "UTF-16-BE").numpy().hex()
      '00e9'
    """

    def change(word: bytes) -> bytes:
        text = _decode(word, input_encoding, errors).replace("\ufffd", chr(replacement_char))
        if replace_control_characters:
            text = "".join(
                chr(replacement_char) if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in text
            )
        return text.encode(output_encoding)

    return mapped("unicode_transcode", change, input)


def _offsets(text: str, encoding: str) -> Tensor:
    """Where each character starts, in bytes."""
    sizes = [len(c.encode(encoding)) for c in text]
    return Tensor(np.cumsum([0, *sizes[:-1]], dtype=np.int64)[: len(text)])


def unicode_decode_with_offsets(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`unicode_decode`, and where each character starts.

    Args:
      input: a string; of several strings the result would be ragged, which is not available.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to bytes that are no character.
      replacement_char: code point that stands for them.
      replace_control_characters: whether control characters are replaced too.
      name: ignored.

    Returns:
      A pair: code points int32 [n] and byte offsets int64 [n].

    Example:
      >>> import meshflow as tf
      >>> points, offsets = tf.strings.unicode_decode_with_offsets("été", "UTF-8")
      >>> print(points.numpy(), offsets.numpy())
      [233 116 233] [0 2 3]
    """
    text = _decode(one(input, "unicode_decode_with_offsets"), input_encoding, errors)
    points = unicode_decode(
        input, input_encoding, errors, replacement_char, replace_control_characters
    )
    return points, _offsets(text, input_encoding)


def unicode_split_with_offsets(
    input: Any,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`unicode_split`, and where each character starts.

    Args:
      input: a string; of several strings the result would be ragged, which is not available.
      input_encoding: 'UTF-8', 'UTF-16-BE' or 'UTF-32-BE'.
      errors: 'replace', 'strict' or 'ignore': what happens to bytes that are no character.
      replacement_char: code point that stands for them.
      name: ignored.

    Returns:
      A pair: characters [n] and byte offsets int64 [n].

    Example:
      >>> import meshflow as tf
      >>> characters, offsets = tf.strings.unicode_split_with_offsets("été", "UTF-8")
      >>> [c.decode() for c in characters.numpy()], offsets.numpy().tolist()
      (['é', 't', 'é'], [0, 2, 3])
    """
    text = _decode(one(input, "unicode_split_with_offsets"), input_encoding, errors)
    characters = unicode_split(input, input_encoding, errors, replacement_char)
    return characters, _offsets(text, input_encoding)
