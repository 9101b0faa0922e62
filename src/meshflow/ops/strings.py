"""String ops. XLA has no strings: these work on values known on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.operands import known_strings
from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype, bool_, float32, int32, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops import regular_expressions
from meshflow.ops.deferred_host_values import waits, waits_for_text
from meshflow.ops.printing import value_text

__all__ = [
    "as_string",
    "bytes_split",
    "format",
    "join",
    "length",
    "lower",
    "ngrams",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_number",
    "unsorted_segment_join",
    "upper",
]

_len = len


_USE = "a string (string ops need known values)"


def _known(input: Any) -> np.ndarray:
    return convert_to_tensor(input)._concrete(_USE)


def _text(input: Any, op: str) -> np.ndarray:
    return known_strings(input, _USE, f"cannot compute {op} as input #0(zero-based)")


def _map(op: str, function: Callable[[bytes], Any], input: Any, dtype: Any = object) -> Tensor:
    array = _text(input, op)
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [function(v) for v in array.reshape(-1)]
    return Tensor(result if dtype is object else result.astype(dtype))


def _strings(values: Any, shape: Any = None) -> Tensor:
    result = np.empty(_len(values), object)
    result[:] = values
    return Tensor(result if shape is None else result.reshape(shape))


def _in_characters(op: str, input: Any, change: Callable[[str], str], encoding: str) -> Tensor:
    if encoding not in ("", "utf-8"):
        raise ValueError(f"encoding must be '' or 'utf-8', got {encoding!r}.")
    code = encoding or "latin-1"
    if encoding:
        return _map(op, lambda s: change(s.decode(code)).encode(code), input)
    # Without an encoding only ASCII letters change.
    change_bytes = bytes.lower if change is str.lower else bytes.upper
    return _map(op, change_bytes, input)


@waits_for_text(string)
@also_symbolic
def lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Lower-case letters: ASCII's, or all with the encoding 'utf-8'.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.lower("ABC").numpy()
      b'abc'
    """
    return _in_characters("lower", input, str.lower, encoding)


@waits_for_text(string)
@also_symbolic
def upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Upper-case letters: ASCII's, or all with the encoding 'utf-8'.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.upper("abc").numpy()
      b'ABC'
    """
    return _in_characters("upper", input, str.upper, encoding)


@waits_for_text(string)
@also_symbolic
def strip(input: Any, name: str | None = None) -> Tensor:
    """Without white space at the ends.

    The result has the shape of the argument.

    Args:
      input: strings.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.strip([" a b ", "c  "]).numpy())
      [b'a b' b'c']
    """
    return _map("strip", lambda s: s.strip(), input)


@waits_for_text(int32)
@also_symbolic
def length(input: Any, unit: str = "BYTE", name: str | None = None) -> Tensor:
    """Lengths in bytes or (unit 'UTF8_CHAR') characters, int32.

    The result has the shape of the argument.

    Args:
      input: strings.
      unit: 'BYTE' or 'UTF8_CHAR'.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.length(["tea", "thé"]).numpy())
      [3 4]
      >>> print(tf.strings.length(["tea", "thé"], unit="UTF8_CHAR").numpy())
      [3 3]
    """
    _check_unit(unit)
    return _map(
        "length", lambda s: _len(s) if unit == "BYTE" else _len(s.decode()), input, np.int32
    )


def _check_unit(unit: str) -> None:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR', got {unit!r}.")


@waits()
@also_symbolic
def substr(input: Any, pos: Any, len: Any, unit: str = "BYTE", name: str | None = None) -> Tensor:
    """Parts of strings.

    Args:
      input: strings.
      pos: first position; a negative one counts from the end. Broadcasts with `input`.
      len: how many bytes or characters, as far as there are so many; of the shape of `pos`.
      unit: 'BYTE' or 'UTF8_CHAR'.
      name: ignored.

    Raises:
      InvalidArgumentError: for a position outside a string.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.substr("hello", 1, 3).numpy()
      b'ell'
    """
    _check_unit(unit)
    words, starts, counts = np.broadcast_arrays(_text(input, "substr"), _known(pos), _known(len))
    result = []
    for word, start, count in zip(words.flat, starts.flat, counts.flat, strict=True):
        text = word if unit == "BYTE" else word.decode()
        if not -_len(text) <= start <= _len(text):
            raise InvalidArgumentError(f"pos {start} out of range for string {word!r} [Op:Substr]")
        start = start if start >= 0 else _len(text) + start
        part = text[start : start + count]
        result.append(part if isinstance(part, bytes) else part.encode())
    return _strings(result, words.shape)


@waits_for_text(string)
@also_symbolic
def regex_replace(
    input: Any, pattern: Any, rewrite: Any, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""Matches of a pattern replaced.

    The result has the shape of the argument.

    Args:
      input: strings.
      pattern: a regular expression in RE2's syntax.
      rewrite: the replacement, in which \1 to \9 stand for groups and \0 for the match.
      replace_global: whether all matches are replaced, or only the first.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.regex_replace("a1b22", "[0-9]+", "#").numpy()
      b'a#b#'
    """
    compiled = regular_expressions.compiled(_python_text(pattern))
    replacement = regular_expressions.replacement(_python_text(rewrite), compiled.groups)
    count = 0 if replace_global else 1

    def change(word: bytes) -> bytes:
        text, end = word.decode("utf-8", "surrogateescape"), -1

        def rewritten(match: re.Match[str]) -> str:
            # RE2 finds nothing of no length where the match before ended.
            nonlocal end
            found = "" if match.end() == end else replacement(match)
            end = match.end()
            return found

        return compiled.sub(rewritten, text, count=count).encode("utf-8", "surrogateescape")

    return _map("regex_replace", change, input)


def _python_text(value: Any) -> str:
    value = value.numpy() if isinstance(value, Tensor) else value
    return value.decode() if isinstance(value, bytes) else value


@waits_for_text(bool_)
@also_symbolic
def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Tensor:
    """Whether whole strings match a pattern.

    The result has the shape of the argument.

    Args:
      input: strings.
      pattern: a regular expression in RE2's syntax.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.regex_full_match(["a12", "a12b"], "a[0-9]+").numpy())
      [ True False]
    """
    compiled = regular_expressions.compiled(_python_text(pattern))

    def matches(word: bytes) -> bool:
        return compiled.fullmatch(word.decode("utf-8", "surrogateescape")) is not None

    return _map("regex_full_match", matches, input, np.bool_)


@waits()
@also_symbolic
def to_number(input: Any, out_type: Any = float32, name: str | None = None) -> Tensor:
    """Numbers from text.

    The result has the shape of the argument.

    Args:
      input: strings.
      out_type: float32, float64, int32 or int64.
      name: ignored.

    Raises:
      InvalidArgumentError: naming the text that is no number.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.to_number(["1.5", "2"]).numpy()
      array([1.5, 2. ], dtype=float32)
    """
    kind = as_dtype(out_type)

    def number(text: bytes) -> Any:
        try:
            if b"_" in text:
                raise ValueError
            return kind.as_numpy_dtype(int(text)) if kind.is_integer else float(text)
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"could not correctly convert string: {text.decode()} [Op:StringToNumber]"
            ) from None

    return _map("to_number", number, input, kind.dtype)


@also_symbolic
def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Text of numbers.

    The result has the shape of the argument.

    Args:
      input: numbers, booleans or strings.
      precision: digits after the point; default 6.
      scientific: whether floats are written with an exponent.
      shortest: whether floats are written with an exponent when that is shorter.
      width: least number of characters.
      fill: a flag of C's printf: '0' fills up with zeros, '-' on the right; default spaces on the left.
      name: ignored.

    Raises:
      InvalidArgumentError: when both `scientific` and `shortest` are set, or `fill` is no flag of C's
        printf.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.as_string(3.14159, precision=2).numpy()
      b'3.14'
    """
    if scientific and shortest:
        raise InvalidValueError("as_string: at most one of scientific and shortest may be set.")
    if fill not in ("", " ", "+", "-", "0", "#"):
        raise InvalidValueError(
            f"as_string: fill must be one of ' ', '+', '-', '0', '#' or empty, got {fill!r}."
        )
    if context.recording is not None and context.recording.takes_number(input):
        given = (input, precision, scientific, shortest, width, fill)
        return context.recording.call(as_string, given, {})
    array = _known(input)
    letter = "e" if scientific else "g" if shortest else "f"
    layout = f"%{fill}{width if width > -1 else ''}"
    digits = f".{precision}" if precision >= 0 else ""

    def text(value: Any) -> bytes:
        kind = array.dtype.kind
        if kind == "O":
            return value
        if kind == "b":
            return b"true" if value else b"false"
        if kind in "iu":
            return (layout + "d").__mod__(int(value)).encode()
        number = layout + digits + letter
        if kind == "c":
            return f"({number % value.real},{number % value.imag})".encode()
        return (number % float(value)).encode()

    return _strings([text(v) for v in array.reshape(-1)], array.shape)


@waits()
@also_symbolic
def join(inputs: Any, separator: str = "", name: str | None = None) -> Tensor:
    """Strings of several tensors joined, element by element.

    Args:
      inputs: list of string tensors of one shape; scalars broadcast.
      separator: what goes between.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.join(["a", "b"], separator="-").numpy()
      b'a-b'
    """
    known = [_text(i, "join") for i in inputs]
    shapes = {a.shape for a in known if a.ndim}
    if len(shapes) > 1:
        raise InvalidArgumentError(f"Input shapes do not match: {sorted(shapes)} [Op:StringJoin]")
    arrays = np.broadcast_arrays(*known)
    if not arrays:
        return _strings([b""], ())
    parts = zip(*[a.reshape(-1) for a in arrays], strict=True)
    return _strings([separator.encode().join(p) for p in parts], arrays[0].shape)


@waits()
@also_symbolic
def reduce_join(
    inputs: Any,
    axis: Any = None,
    keepdims: bool = False,
    separator: str = "",
    name: str | None = None,
) -> Tensor:
    """Strings joined along dimensions.

    The result has the shape of the argument without the dimensions of `axis`; with `keepdims` these stay with size
    1.

    Args:
      inputs: strings.
      axis: the dimensions, joined one after the other in the order given; default all, the last first.
      keepdims: whether they stay, with size 1.
      separator: what goes between.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.strings.reduce_join([["a", "b"], ["c", "d"]], axis=1, separator="-").numpy())
      [b'a-b' b'c-d']
    """
    array = _text(inputs, "reduce_join")
    given = [axis] if isinstance(axis, int) else axis
    # The dimension that is joined first runs fastest.
    axes = list(range(array.ndim)) if given is None else [int(a) % array.ndim for a in given][::-1]
    kept = [i for i in range(array.ndim) if i not in axes]
    rows = array.transpose(*kept, *axes).reshape(-1, int(np.prod([array.shape[a] for a in axes])))
    shape = [1 if i in axes else n for i, n in enumerate(array.shape) if keepdims or i not in axes]
    return _strings([separator.encode().join(r) for r in rows], shape)


def _one(input: Any, op: str) -> bytes:
    array = _text(input, op)
    if array.ndim:
        raise NotImplementedError(
            f"tf.strings.{op} of several strings gives rows of different lengths (a RaggedTensor), "
            "which XLA does not have. Call it for each string, or split before making tensors."
        )
    return array[()]


@waits(lambda *_, **__: TensorSpec([None], string))
@also_symbolic
def split(input: Any, sep: Any = None, maxsplit: int = -1, name: str | None = None) -> Tensor:
    """The parts of one string.

    All results have the argument's shape, with the parts' sizes along `axis`.

    Args:
      input: a string; of several strings the result would be ragged, which is not available.
      sep: what separates the parts; default any white space.
      maxsplit: at most so many splits; default all.
      name: ignored.

    Returns:
      A vector of strings.

    Raises:
      NotImplementedError: for several strings.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.split("a b  c").numpy().tolist()
      [b'a', b'b', b'c']
    """
    separator = _python_text(sep).encode() if sep is not None else None
    return _strings(_one(input, "split").split(separator or None, maxsplit))


@also_symbolic
def bytes_split(input: Any, name: str | None = None) -> Tensor:
    """The bytes of one string, a vector of strings.

    Args:
      input: a string scalar.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.bytes_split("tea").numpy().tolist()
      [b't', b'e', b'a']
    """
    word = _one(input, "bytes_split")
    return _strings([word[i : i + 1] for i in range(_len(word))])


@also_symbolic
def ngrams(
    data: Any,
    ngram_width: Any,
    separator: str = " ",
    pad_values: Any = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Tensor:
    """Runs of neighbouring strings, joined.

    From (n,) to (m,), m being the number of n-grams of all widths.

    Args:
      data: a vector of strings.
      ngram_width: how many strings in a run, or a list of such numbers.
      separator: what goes between.
      pad_values: a string, or a pair, put before and after; default none.
      padding_width: how many; default the width of the run minus 1.
      preserve_short_sequences: whether data shorter than a run gives one run.
      name: ignored.

    Returns:
      A vector of strings.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.ngrams(["to", "be", "or"], 2).numpy().tolist()
      [b'to be', b'be or']
    """
    words = _text(data, "ngrams")
    if words.ndim != 1:
        raise NotImplementedError("tf.strings.ngrams is only available for a vector of strings.")
    glue = separator.encode()
    found: list[bytes] = []
    for width in [ngram_width] if isinstance(ngram_width, int) else ngram_width:
        row = words.tolist()
        if pad_values is not None:
            left, right = (
                (pad_values, pad_values) if isinstance(pad_values, (str, bytes)) else pad_values
            )
            count = width - 1 if padding_width is None else min(padding_width, width - 1)
            encode = lambda v: v if isinstance(v, bytes) else v.encode()
            row = [encode(left)] * count + row + [encode(right)] * count
        runs = [glue.join(row[i : i + width]) for i in range(_len(row) - width + 1)]
        if not runs and row and preserve_short_sequences:
            runs = [glue.join(row)]
        found += runs
    return _strings(found)


@also_symbolic
def format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: str | None = None
) -> Tensor:
    """A template with tensors in place of its placeholders.

    The result is a scalar string.

    Args:
      template: the text.
      inputs: a tensor, or a list with one for each placeholder.
      placeholder: what is replaced.
      summarize: how many elements at each end of a dimension are shown; -1 for all.
      name: ignored.

    Raises:
      ValueError: when there are more or fewer placeholders than tensors.

    Example:
      >>> import meshflow as tf
      >>> tf.strings.format("x = {}", tf.constant([1.0, 2.5])).numpy()
      b'x = [1 2.5]'
    """
    parts = template.split(placeholder)
    values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if _len(parts) - 1 != _len(values):
        raise ValueError(
            f"{_len(parts) - 1} placeholder(s) in template does not match {_len(values)} tensor(s) provided as input"
        )
    texts = [value_text(_known(v), summarize) for v in values]
    return convert_to_tensor("".join(p + t for p, t in zip(parts, [*texts, ""], strict=True)))


@also_symbolic
def unsorted_segment_join(
    inputs: Any, segment_ids: Any, num_segments: Any, separator: str = "", name: str | None = None
) -> Tensor:
    """Strings joined by segment.

    Args:
      inputs: strings, whose shape starts with that of `segment_ids`.
      segment_ids: the segment of each; negative ones are left out.
      num_segments: number of segments.
      separator: what goes between.
      name: ignored.

    Returns:
      Strings [num_segments, ...].

    Example:
      >>> import meshflow as tf
      >>> tf.strings.unsorted_segment_join(["a", "b", "c"], [0, 1, 0], 2, separator="-").numpy()
      array([b'a-c', b'b'], dtype=object)
    """
    words, ids = _text(inputs, "unsorted_segment_join"), np.asarray(_known(segment_ids))
    count = int(_known(num_segments))
    if words.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            f"segment_ids of shape {list(ids.shape)} do not fit strings of shape {list(words.shape)}."
        )
    if ids.size and ids.max() >= count:
        raise InvalidArgumentError(f"segment_ids must be below num_segments ({count}).")
    rows = words.reshape(ids.size, -1)
    joined = [
        separator.encode().join(rows[ids.reshape(-1) == segment, column])
        for segment in range(count)
        for column in range(rows.shape[1])
    ]
    return _strings(joined, (count, *words.shape[ids.ndim :]))
