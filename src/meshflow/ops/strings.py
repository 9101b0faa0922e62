"""String ops, on the host because XLA has no strings: the strings must not depend on traced values."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from meshflow.core.dispatch.operands import get_strings, to_static_value
from meshflow.core.dispatch.symbolic_calls import UnknownString, accept_symbolic
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.composite import split_value
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, bool_, float32, int32, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import regular_expressions
from meshflow.ops.array.creation import zeros
from meshflow.ops.array.shaping import normalize_axis
from meshflow.ops.deferred_host_values import (
    DeferredValue,
    UnrecordableError,
    defer_host_values,
    defer_strings,
)
from meshflow.ops.printing import format_rows, format_value
from meshflow.ops.ragged import RaggedTensor, split_strings
from meshflow.ops.ragged.calls import register
from meshflow.ops.ragged.reductions import parse_axes, reduce_axes, restore_axes

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

F = TypeVar("F", bound=Callable[..., Any])

_len = len

# A character in UTF-8: a byte with the continuation bytes that follow it.
_CHARACTER = re.compile(rb".[\x80-\xbf]*", re.DOTALL)

_USE_DESCRIPTION = "a string (string ops need known values)"


def get_host_array(input: TensorLike) -> np.ndarray:
    return convert_to_tensor(input).require_value(_USE_DESCRIPTION)


def get_host_strings(input: TensorLike, op: str) -> np.ndarray:
    return get_strings(input, _USE_DESCRIPTION, f"cannot compute {op} as input #0(zero-based)")


def map_strings(
    op: str, function: Callable[[bytes], object], input: TensorLike, dtype: np.dtype | type = object
) -> Tensor:
    array = get_host_strings(input, op)
    result = np.empty(array.shape, object)
    result.reshape(-1)[:] = [function(v) for v in array.reshape(-1)]
    return Tensor(result if dtype is object else result.astype(dtype))


def make_string_tensor(values: Sequence[bytes], shape: Sequence[int] | None = None) -> Tensor:
    result = np.empty(_len(values), object)
    result[:] = values
    return Tensor(result if shape is None else result.reshape(shape))


def _change_case(op: str, input: TensorLike, change: Callable[[str], str], encoding: str) -> Tensor:
    if encoding not in ("", "utf-8"):
        raise ValueError(f"encoding must be '' or 'utf-8', got {encoding!r}.")
    if encoding:
        return map_strings(op, lambda s: change(s.decode(errors="replace")).encode(), input)
    # Without an encoding only ASCII letters are changed.
    change_bytes = bytes.lower if change is str.lower else bytes.upper
    return map_strings(op, change_bytes, input)


@defer_strings(string)
@accept_symbolic
def lower(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """Convert strings to lower case, keeping the shape.

    Args:
      input: Strings.
      encoding: '' to convert only ASCII letters, or 'utf-8' to convert all letters.
      name: Ignored.

    Example:
      >>> tf.strings.lower("ABC").numpy()
      b'abc'
    """
    return _change_case("lower", input, str.lower, encoding)


@defer_strings(string)
@accept_symbolic
def upper(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """Convert strings to upper case, keeping the shape; see `lower` for the arguments.

    Example:
      >>> tf.strings.upper("abc").numpy()
      b'ABC'
    """
    return _change_case("upper", input, str.upper, encoding)


@defer_strings(string)
@accept_symbolic
def strip(input: TensorLike, name: str | None = None) -> Tensor:
    """Remove white space at both ends of strings, keeping the shape.

    Example:
      >>> print(tf.strings.strip([" a b ", "c  "]).numpy())
      [b'a b' b'c']
    """
    return map_strings("strip", lambda s: s.strip(), input)


@defer_strings(int32)
@accept_symbolic
def length(input: TensorLike, unit: str = "BYTE", name: str | None = None) -> Tensor:
    """Count the bytes or characters of strings, as int32 of the same shape.

    Args:
      input: Strings.
      unit: 'BYTE' or 'UTF8_CHAR'.
      name: Ignored.

    Example:
      >>> print(tf.strings.length(["tea", "thé"]).numpy())
      [3 4]
      >>> print(tf.strings.length(["tea", "thé"], unit="UTF8_CHAR").numpy())
      [3 3]
    """
    _check_unit(unit)
    return map_strings(
        "length",
        lambda s: _len(s) if unit == "BYTE" else _len(_split_characters(s)),
        input,
        np.int32,
    )


def _check_unit(unit: str) -> None:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR', got {unit!r}.")


@defer_strings(string, takes_numbers=True)
@accept_symbolic
def substr(
    input: TensorLike, pos: TensorLike, len: TensorLike, unit: str = "BYTE", name: str | None = None
) -> Tensor:
    """Extract substrings.

    Args:
      input: Strings.
      pos: First position, counted from the end if negative; it is broadcast with `input`.
      len: Maximum number of bytes or characters, with the shape of `pos`; all if it is negative.
      unit: 'BYTE' or 'UTF8_CHAR'.
      name: Ignored.

    Raises:
      InvalidArgumentError: If a position is outside of its string.

    Example:
      >>> tf.strings.substr("hello", 1, 3).numpy()
      b'ell'
    """
    _check_unit(unit)
    words, starts, counts = np.broadcast_arrays(
        get_host_strings(input, "substr"), get_host_array(pos), get_host_array(len)
    )
    result = []
    for word, start, count in zip(words.flat, starts.flat, counts.flat, strict=True):
        text = word if unit == "BYTE" else _split_characters(word)
        if not -_len(text) <= start <= _len(text):
            raise InvalidArgumentError(f"pos {start} out of range for string {word!r} [Op:Substr]")
        start = start if start >= 0 else _len(text) + start
        part = text[start : start + count if count >= 0 else None]
        result.append(b"".join(part) if isinstance(part, list) else part)
    return make_string_tensor(result, words.shape)


def _split_characters(word: bytes) -> list[bytes]:
    """Split UTF-8 into characters; like TensorFlow, accept invalid bytes."""
    return _CHARACTER.findall(word)


@defer_strings(string)
@accept_symbolic
def regex_replace(
    input: TensorLike,
    pattern: TensorLike,
    rewrite: TensorLike,
    replace_global: bool = True,
    name: str | None = None,
) -> Tensor:
    r"""Replace matches of a regular expression, keeping the shape.

    Args:
      input: Strings.
      pattern: A regular expression in RE2's syntax.
      rewrite: The replacement, with \1 to \9 for groups and \0 for the match.
      replace_global: Whether to replace all matches instead of only the first.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the pattern or the replacement is invalid.

    Example:
      >>> tf.strings.regex_replace("a1b22", "[0-9]+", "#").numpy()
      b'a#b#'
    """
    replace = regular_expressions.make_replacer(
        to_bytes(pattern), to_bytes(rewrite), replace_global
    )
    return map_strings("regex_replace", replace, input)


def to_bytes(value: Tensor | str | bytes) -> bytes:
    """Return the bytes of a string scalar.

    Raises:
      ValueError: If the value is not a string scalar.
    """
    known: Any = value.numpy() if isinstance(value, Tensor) else value
    if not isinstance(known, str | bytes):
        raise ValueError(f"Expected a string scalar, got {value!r}.")
    return known.encode() if isinstance(known, str) else known


@defer_strings(bool_)
@accept_symbolic
def regex_full_match(input: TensorLike, pattern: TensorLike, name: str | None = None) -> Tensor:
    """Check whether entire strings match a regular expression, as booleans of the same shape.

    Example:
      >>> print(tf.strings.regex_full_match(["a12", "a12b"], "a[0-9]+").numpy())
      [ True False]
    """
    matches = regular_expressions.make_matcher(to_bytes(pattern))
    return map_strings("regex_full_match", matches, input, np.bool_)


@defer_strings(lambda input, out_type=float32, name=None: out_type, takes_numbers=True)
@accept_symbolic
def to_number(input: TensorLike, out_type: DTypeLike = float32, name: str | None = None) -> Tensor:
    """Parse strings as numbers, keeping the shape.

    Args:
      input: Strings.
      out_type: float32, float64, int32 or int64.
      name: Ignored.

    Raises:
      InvalidArgumentError: If a string is not a number.

    Example:
      >>> tf.strings.to_number(["1.5", "2"]).numpy()
      array([1.5, 2. ], dtype=float32)
    """
    dtype = as_dtype(out_type)

    def parse(text: bytes) -> float | np.number:
        if isinstance(text, UnknownString):
            return 0
        try:
            if b"_" in text:
                raise ValueError
            if dtype.is_integer:
                return dtype.as_numpy_dtype(int(text))
            is_hexadecimal = text.strip().lstrip(b"+-")[:2].lower() == b"0x"
            return float(int(text, 16)) if is_hexadecimal else float(text)
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"StringToNumberOp could not correctly convert string: {text.decode(errors='backslashreplace')} [Op:StringToNumber]"
            ) from None

    return map_strings("to_number", parse, input, dtype.dtype)


@accept_symbolic
def as_string(
    input: TensorLike,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Format numbers as strings, keeping the shape.

    Args:
      input: Numbers, booleans or strings.
      precision: Number of digits after the decimal point; 6 by default.
      scientific: Whether to format floats with an exponent.
      shortest: Whether to format floats with an exponent if that is shorter.
      width: Minimum number of characters.
      fill: A flag of C's printf, for example '0' to pad with zeros, or '-' to pad on the right; by
        default strings are padded with spaces on the left.
      name: Ignored.

    Raises:
      InvalidArgumentError: If both `scientific` and `shortest` are set, or `fill` is not a flag of
        C's printf.

    Example:
      >>> tf.strings.as_string(3.14159, precision=2).numpy()
      b'3.14'
    """
    if scientific and shortest:
        raise InvalidValueError("as_string: at most one of scientific and shortest may be set.")
    if fill not in ("", " ", "+", "-", "0", "#"):
        raise InvalidValueError(
            f"as_string: fill must be one of ' ', '+', '-', '0', '#' or empty, got {fill!r}."
        )
    if context.host_recorder is not None and context.host_recorder.should_record_number(input):
        arguments = (input, precision, scientific, shortest, width, fill)
        return context.host_recorder.call(as_string, arguments, {})
    array = get_host_array(input)
    letter = "e" if scientific else "g" if shortest else "f"
    layout = f"%{fill}{width if width > -1 else ''}"
    digits = f".{precision}" if precision >= 0 else ""

    def format_value(value: Any) -> bytes:
        kind = array.dtype.kind
        if kind == "O":
            return value
        if kind == "b":
            return b"true" if value else b"false"
        if kind in "iu":
            return (layout + "d").__mod__(int(value)).encode()
        template = layout + digits + letter
        if kind == "c":
            return f"({template % value.real},{template % value.imag})".encode()
        return (template % float(value)).encode()

    return make_string_tensor([format_value(v) for v in array.reshape(-1)], array.shape)


def _make_join_spec(inputs: Sequence[TensorLike], *_: object, **__: object) -> TensorSpec:
    shapes = [v.shape if isinstance(v, DeferredValue) else np.shape(v) for v in inputs]
    return TensorSpec(next((shape for shape in shapes if _len(shape)), []), string)


@defer_host_values(_make_join_spec)
@accept_symbolic
def join(inputs: Sequence[TensorLike], separator: str = "", name: str | None = None) -> Tensor:
    """Join the strings of several tensors elementwise.

    Args:
      inputs: List of string tensors of the same shape; scalars are broadcast.
      separator: Text between the strings.
      name: Ignored.

    Example:
      >>> tf.strings.join(["a", "b"], separator="-").numpy()
      b'a-b'
    """
    texts = [get_host_strings(i, "join") for i in inputs]
    shapes = {a.shape for a in texts if a.ndim}
    if len(shapes) > 1:
        raise InvalidValueError(f"Input shapes do not match: {sorted(shapes)} [Op:StringJoin]")
    arrays = np.broadcast_arrays(*texts)
    if not arrays:
        return make_string_tensor([b""], ())
    parts = zip(*[a.reshape(-1) for a in arrays], strict=True)
    return make_string_tensor(list(map(to_bytes(separator).join, parts)), arrays[0].shape)


@defer_host_values()
@accept_symbolic
def reduce_join(
    inputs: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    separator: str | bytes = "",
    name: str | None = None,
) -> Tensor:
    """Join strings along axes.

    Args:
      inputs: Strings.
      axis: The axes, which are joined in the given order; by default all, starting with the last.
      keepdims: Whether to keep the joined axes, with size 1.
      separator: Text between the strings.
      name: Ignored.

    Example:
      >>> print(tf.strings.reduce_join([["a", "b"], ["c", "d"]], axis=1, separator="-").numpy())
      [b'a-b' b'c-d']
    """
    array = get_host_strings(inputs, "reduce_join")
    static_axis = to_static_value(axis, "axis")
    requested = (static_axis,) if isinstance(static_axis, int) else static_axis
    axes = list(range(array.ndim))
    if requested is not None:
        # The axis that is joined first varies fastest.
        axes = [normalize_axis(int(a), array.ndim, "reduce_join") for a in requested][::-1]
    others = [i for i in range(array.ndim) if i not in axes]
    count, size = (math.prod(array.shape[a] for a in part) for part in (others, axes))
    rows = array.transpose(*others, *axes).reshape(count, size)
    shape = [1 if i in axes else n for i, n in enumerate(array.shape) if keepdims or i not in axes]
    return make_string_tensor(list(map(to_bytes(separator).join, rows)), shape)


def split_each(input: TensorLike, op: str, split_one: Callable[[bytes], list[bytes]]) -> Any:
    """Split each string of a tensor: a scalar to a vector, and others to a ragged tensor."""
    return split_strings(get_host_strings(input, op), split_one, make_string_tensor)


def defer_parts(function: F) -> F:
    """Decorate a function that splits strings, so that it accepts a string of each element."""

    @functools.wraps(function)
    def public(input: TensorLike, *args: Any, **kwargs: Any) -> Any:
        recorder = context.host_recorder
        if recorder is None or not recorder.should_record((input, *args), kwargs):
            return function(input, *args, **kwargs)
        if recorder.inlines:
            return recorder.call(public, (input, *args), kwargs)
        if not isinstance(input, DeferredValue) or input.shape.rank != 0:
            raise UnrecordableError("a ragged tensor")
        split_all = lambda texts: function(texts, *args, **kwargs)
        return recorder.parse(input, split_all, TensorSpec([None], string))

    return cast(F, public)


def record_rows(
    list_values: Callable[..., Tensor], count_values: Callable[..., Tensor]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function that is being saved split a vector of strings, whose rows differ in length.

    Args:
      list_values: Returns the parts of all strings, from the arguments of the function.
      count_values: Returns the number of parts of each string.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            recorder = context.host_recorder
            if recorder is not None and recorder.inlines:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                input, *arguments = [v for n, v in bound.arguments.items() if n != "name"]
                if isinstance(input, DeferredValue) and input.ndim == 1:
                    return RaggedTensor.from_row_lengths(
                        recorder.call(list_values, (input, *arguments), {}),
                        recorder.call(count_values, (input, *arguments), {}),
                        validate=False,
                    )
            return function(*args, **kwargs)

        return public

    return decorate


def list_parts(input: TensorLike, sep: TensorLike | None = None, maxsplit: int = -1) -> Tensor:
    """Return the parts of all strings of a vector."""
    parts: Tensor = split(input, sep, maxsplit).flat_values
    return parts


def count_parts(input: TensorLike, sep: TensorLike | None = None, maxsplit: int = -1) -> Tensor:
    """Return the number of parts of each string of a vector."""
    counts: Tensor = split(input, sep, maxsplit).row_lengths()
    return counts


@record_rows(list_parts, count_parts)
@defer_parts
@accept_symbolic
def split(
    input: TensorLike, sep: TensorLike | None = None, maxsplit: int = -1, name: str | None = None
) -> Tensor:
    """Split strings.

    Args:
      input: A string scalar, which becomes a vector, or several strings, which become the rows of a
        ragged tensor.
      sep: Separator; by default any white space.
      maxsplit: Maximum number of splits; -1 for all.
      name: Ignored.

    Example:
      >>> tf.strings.split("a b  c").numpy().tolist()
      [b'a', b'b', b'c']
      >>> tf.strings.split(["a b", "c"]).to_list()
      [[b'a', b'b'], [b'c']]
    """
    separator = to_bytes(sep) if sep is not None else None
    split_one = operator.methodcaller("split", separator or None, maxsplit)
    return split_each(input, "split", split_one)


@defer_parts
@accept_symbolic
def bytes_split(input: TensorLike, name: str | None = None) -> Tensor:
    """Split strings into their bytes: a scalar to a vector, and several to a ragged tensor.

    Example:
      >>> tf.strings.bytes_split("tea").numpy().tolist()
      [b't', b'e', b'a']
    """
    split_one = lambda word: [word[i : i + 1] for i in range(_len(word))]
    return split_each(input, "bytes_split", split_one)


@accept_symbolic
def ngrams(
    data: TensorLike,
    ngram_width: int | Sequence[int],
    separator: str | bytes = " ",
    pad_values: str | bytes | tuple[str | bytes, str | bytes] | None = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Tensor:
    """Create n-grams of the strings in each innermost row, as rows of strings.

    Args:
      data: A tensor or ragged tensor of strings, not a scalar.
      ngram_width: Number of strings in an n-gram, or a list of such numbers.
      separator: Text between the strings.
      pad_values: A string for both ends, or a pair (left, right); by default there is no padding.
      padding_width: Number of padding strings; by default the width minus 1.
      preserve_short_sequences: Whether a row with too few strings for all n-grams has one shorter n-gram.
      name: Ignored.

    Raises:
      ValueError: If `data` is a scalar, a width is not positive, or `padding_width` has no `pad_values`.

    Example:
      >>> tf.strings.ngrams(["to", "be", "or"], 2).numpy().tolist()
      [b'to be', b'be or']
    """
    width = to_static_value(ngram_width, "ngram_width")
    widths = [width] if isinstance(width, int) else width
    pads = pad_values if isinstance(pad_values, tuple | list) else (pad_values,)
    if not all(pad is None or isinstance(pad, str | bytes) for pad in pads):
        raise TypeError(
            f"pad_values must be a string, tuple of strings, or None. Got {pad_values!r}."
        )
    if min(widths, default=1) < 1:
        raise ValueError(f"All ngram_widths must be greater than 0. Got {ngram_width}")
    if padding_width is not None and padding_width < 1:
        raise ValueError("padding_width must be greater than 0.")
    if padding_width is not None and pad_values is None:
        raise ValueError("pad_values must be provided if padding_width is set.")
    if isinstance(data, RaggedTensor) and len(data.values.shape) > 1:
        more = (separator, pad_values, padding_width, preserve_short_sequences)
        return data.with_values(ngrams(data.values, widths, *more))
    ends = None
    if pad_values is not None:
        if _len(pads) > 2:
            raise ValueError(
                f"pad_values must be a string or a pair of strings. Got {pad_values!r}"
            )
        ends = [to_bytes(cast(Any, pad)) for pad in (pads[0], pads[-1])]
    options = (widths, to_bytes(separator), ends, padding_width, preserve_short_sequences)
    words = get_host_strings(data.values if isinstance(data, RaggedTensor) else data, "ngrams")
    if not words.ndim:
        raise ValueError("Data must have rank>0")
    if not isinstance(data, RaggedTensor):
        *sizes, size = words.shape
        matrix = words.reshape(math.prod(sizes), size).tolist()
        # A tensor without strings has no n-grams, even of padding.
        lists = [_list_ngrams(row, *options) for row in matrix if row]
        count = _len(lists[0]) if lists else 0
        return make_string_tensor([text for row in lists for text in row], [*sizes, count])
    splits = data.row_splits.require_value("rows of strings to join")
    texts = words.tolist()
    if pad_values is None and not preserve_short_sequences:
        joined, counts = _join_runs(texts, splits, widths, to_bytes(separator))
    else:
        bounds = itertools.pairwise(splits.tolist())
        rows = [_list_ngrams(texts[i:j], *options) if texts else [] for i, j in bounds]
        joined = list(itertools.chain.from_iterable(rows))
        counts = np.array(list(map(_len, rows)))
    return RaggedTensor.from_row_lengths(
        make_string_tensor(joined), counts.astype(splits.dtype), validate=False
    )


def _join_runs(
    words: list[bytes], splits: np.ndarray, widths: Sequence[int], separator: bytes
) -> tuple[Sequence[bytes], np.ndarray]:
    """Join each run of words of one row, for all rows at once.

    Args:
      words: The words of all rows.
      splits: Where the rows start, and the number of words.
      widths: Numbers of words in a run; in each row, all runs of a width precede those of the next one.
      separator: Text between the words.

    Returns:
      The runs of all rows, and their number in each row.
    """
    lengths = np.diff(splits)
    ends, numbers = np.repeat(splits[1:], lengths), np.repeat(np.arange(_len(lengths)), lengths)
    parts, rows = [], []
    for width in widths:
        runs = list(map(separator.join, zip(*[words[i:] for i in range(width)], strict=False)))
        texts = np.empty(_len(runs), object)
        texts[:] = runs
        is_inside = np.arange(_len(runs)) + width <= ends[: _len(runs)]
        parts.append(texts[is_inside])
        rows.append(numbers[: _len(runs)][is_inside])
    joined, places = np.concatenate([*parts, []]), np.concatenate([*rows, np.zeros(0, np.int64)])
    order = np.argsort(places, kind="stable") if _len(widths) > 1 else slice(None)
    counts = np.bincount(places.astype(np.int64), minlength=_len(lengths))
    return joined[order].tolist(), counts


def _list_ngrams(
    words: list[bytes],
    widths: Sequence[int],
    separator: bytes,
    pad_values: list[bytes] | None,
    padding_width: int | None,
    preserve_short_sequences: bool,
) -> list[bytes]:
    """Return the n-grams of one row of strings; `pad_values` are the strings for both ends."""
    result: list[bytes] = []
    row = words
    for width in widths:
        row = words
        if pad_values is not None:
            left, right = pad_values
            count = width - 1 if padding_width is None else min(padding_width, width - 1)
            row = [left] * count + row + [right] * count
        shifted = [row[i:] for i in range(width)]
        result += map(separator.join, zip(*shifted, strict=False))
    if not result and words and preserve_short_sequences:
        result = [separator.join(row)]
    return result


@accept_symbolic
def format(
    template: str,
    inputs: TensorLike | Sequence[TensorLike],
    placeholder: str = "{}",
    summarize: int = 3,
    name: str | None = None,
) -> Tensor:
    """Replace the placeholders of a template by tensors; the result is a string scalar.

    Args:
      template: The template.
      inputs: A tensor, or a list with one for each placeholder.
      placeholder: The placeholder.
      summarize: Number of elements to show at each end of an axis; -1 for all.
      name: Ignored.

    Raises:
      ValueError: If the number of placeholders is not that of the tensors.

    Example:
      >>> tf.strings.format("x = {}", tf.constant([1.0, 2.5])).numpy()
      b'x = [1 2.5]'
    """
    parts = template.split(placeholder)
    values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if _len(parts) - 1 != _len(values):
        raise ValueError(
            f"{_len(parts) - 1} placeholder(s) in template does not match {_len(values)} tensor(s) provided as input"
        )
    texts = [
        format_rows(*_split_ragged(v), summarize)
        if isinstance(v, RaggedTensor)
        else format_value(get_host_array(v), summarize)
        for v in values
    ]
    return convert_to_tensor("".join(p + t for p, t in zip(parts, [*texts, ""], strict=True)))


def _split_ragged(value: RaggedTensor) -> tuple[np.ndarray, list[np.ndarray]]:
    flat, *splits = [t.require_value("values to format") for t in split_value(value)]
    return flat, splits


@defer_host_values()
def join_rows(
    inputs: TensorLike, segment_ids: TensorLike, lengths: TensorLike, separator: str | bytes
) -> Tensor:
    """Join the strings of each row; see `unsorted_segment_join`. The size of `lengths` is the number of rows."""
    count = np.shape(get_host_array(lengths))[0]
    joined: Tensor = unsorted_segment_join(inputs, segment_ids, count, separator)
    return joined


@defer_host_values()
def place_strings(
    values: TensorLike, indices: TensorLike, like: TensorLike, default: str | bytes
) -> Tensor:
    """Return strings of the shape of `like` with values at int64 coordinates [n, rank]."""
    words, places = get_host_strings(values, "place_strings"), np.asarray(get_host_array(indices))
    result = np.full(np.shape(get_host_array(like)), to_bytes(default), object)
    result[tuple(places.T)] = words
    return Tensor(result)


@accept_symbolic
def unsorted_segment_join(
    inputs: TensorLike,
    segment_ids: TensorLike,
    num_segments: TensorLike,
    separator: str | bytes = "",
    name: str | None = None,
) -> Tensor:
    """Join strings of the same segment.

    Args:
      inputs: Strings with a shape that starts with that of `segment_ids`.
      segment_ids: Segment of each string; strings with negative ids are ignored.
      num_segments: Number of segments.
      separator: Text between the strings.
      name: Ignored.

    Returns:
      Strings [num_segments, ...].

    Example:
      >>> tf.strings.unsorted_segment_join(["a", "b", "c"], [0, 1, 0], 2, separator="-").numpy()
      array([b'a-c', b'b'], dtype=object)
    """
    words, ids = (
        get_host_strings(inputs, "unsorted_segment_join"),
        np.asarray(get_host_array(segment_ids)),
    )
    count = int(get_host_array(num_segments))
    if words.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            f"segment_ids of shape {list(ids.shape)} must match the first axes of inputs of shape {list(words.shape)}."
        )
    if ids.size and ids.max() >= count:
        raise InvalidArgumentError(
            f"segment_ids must be less than num_segments ({count}), got {ids.max()}."
        )
    rows = words.reshape(ids.size, math.prod(words.shape[ids.ndim :]))
    parts: list[list[list[bytes]]] = [[[] for _ in range(rows.shape[1])] for _ in range(count)]
    for segment, row in zip(ids.reshape(-1).tolist(), rows.tolist(), strict=True):
        for cell, word in zip(parts[segment] if segment >= 0 else (), row, strict=False):
            cell.append(word)
    joined = map(to_bytes(separator).join, itertools.chain.from_iterable(parts))
    return make_string_tensor(list(joined), (count, *words.shape[ids.ndim :]))


def _reduce_join_rows(
    public: Callable[..., Any],
    inputs: RaggedTensor,
    axis: PyTree = None,
    keepdims: bool = False,
    separator: str | bytes = "",
) -> PyTree:
    axes = parse_axes(inputs, axis)
    if axes is None:
        return public(inputs.flat_values, None, keepdims=keepdims, separator=separator)

    def join_segments(values: Tensor, ids: Tensor, count: Any) -> Tensor:
        return join_rows(values, ids, zeros([count], int32), separator)

    join_dense = lambda x, a: public(x, a, separator=separator)
    result = reduce_axes((join_segments, join_dense), inputs, axes)
    return restore_axes(result, axes) if keepdims else result


register("reduce_join", _reduce_join_rows)
