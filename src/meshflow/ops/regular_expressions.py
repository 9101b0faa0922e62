"""Regular expressions of RE2, which TensorFlow uses too; they match in linear time."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import re2

from meshflow.core.runtime.errors import InvalidArgumentError

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
# re2's public functions create an object for each match, which takes three times as long.
_RE2 = re2._re2.RE2  # type: ignore[attr-defined]
_SEARCH, _FULL_MATCH = _RE2.Anchor.UNANCHORED, _RE2.Anchor.ANCHOR_BOTH


class _Expression(Protocol):
    """A compiled pattern."""

    def ok(self) -> bool: ...
    def error(self) -> bytes: ...
    def Match(
        self, anchor: object, text: bytes, start: int, end: int
    ) -> Sequence[tuple[int, int]]: ...
    def NumberOfCapturingGroups(self) -> int: ...


@functools.lru_cache(256)
def _compile_pattern(pattern: bytes) -> _Expression:
    expression: _Expression = _RE2(pattern, _OPTIONS)
    if not expression.ok():
        error = expression.error().decode(errors="replace")
        raise InvalidArgumentError(
            f"Invalid pattern: {pattern.decode(errors='replace')}, error: {error}"
        )
    return expression


def make_matcher(pattern: bytes) -> Callable[[bytes], bool]:
    r"""Return a function that checks whether an entire text matches.

    Args:
      pattern: Pattern in RE2's syntax, in UTF-8: that of `re` without look-around and back
        references, with POSIX classes such as [[:space:]], categories such as \p{L}, and \d, \s and
        \w for ASCII only.

    Raises:
      InvalidArgumentError: If the pattern is invalid, or too large.
    """
    match = _compile_pattern(pattern).Match
    return lambda text: match(_FULL_MATCH, text, 0, len(text))[0][0] >= 0


# Patterns of plain text, and of one ASCII character in brackets: other escapes may match other characters.
_PLAIN_TEXT = re.compile(rb"[^\\.+*?()|\[\]{}^$\x80-\xff]+")
_ONE_CHARACTER = re.compile(rb"\[(?!\^)(?:[^\]\[\\\x80-\xff]|\\[^0-9A-Za-z\x80-\xff])+\]")


def _make_byte_replacer(
    pattern: bytes, text: bytes, replace_all: bool
) -> Callable[[bytes], bytes] | None:
    """Return a function that replaces matches by a text with methods of bytes, None if they cannot find the matches."""
    if _PLAIN_TEXT.fullmatch(pattern):
        return lambda value: value.replace(pattern, text, -1 if replace_all else 1)
    if not replace_all or len(text) > 1 or not _ONE_CHARACTER.fullmatch(pattern):
        return None
    is_match = make_matcher(pattern)
    found = bytes(byte for byte in range(128) if is_match(bytes([byte])))
    if not text:
        return lambda value: value.translate(None, found)
    table = bytes.maketrans(found, text * len(found))
    return lambda value: value.translate(table)


def make_replacer(pattern: bytes, rewrite: bytes, replace_all: bool) -> Callable[[bytes], bytes]:
    r"""Return a function that replaces matches in a text, as RE2's `Replace` and `GlobalReplace` do.

    Args:
      pattern: Pattern in RE2's syntax. In texts, bytes that are not UTF-8 match no character.
      rewrite: Text with \0 for the match, \1 to \9 for groups and \\ for a backslash.
      replace_all: Whether to replace more than the first match.

    Raises:
      InvalidArgumentError: If the pattern is invalid or too large.

    As in TensorFlow, a rewrite with a group that does not exist replaces nothing. Another invalid use of the
    backslash ends a rewrite: `GlobalReplace` inserts the text before it, and `Replace` replaces nothing.
    """
    expression = _compile_pattern(pattern)
    parts, is_valid = _parse_rewrite(rewrite)
    groups = max((p for p in parts if isinstance(p, int)), default=0)
    if groups > expression.NumberOfCapturingGroups() or not (is_valid or replace_all):
        return lambda text: text
    match = expression.Match
    literals = [part for part in parts if isinstance(part, bytes)]
    if len(literals) == len(parts):
        simple = _make_byte_replacer(pattern, b"".join(literals), replace_all)
        if simple is not None:
            return simple

    def replace(text: bytes) -> bytes:
        pieces: list[bytes] = []
        offset, previous_end, end_of_text = 0, -1, len(text)
        while offset <= end_of_text:
            spans = match(_SEARCH, text, offset, end_of_text)
            start, end = spans[0]
            if start < 0:
                if not pieces:
                    return text
                break
            pieces.append(text[offset:start])
            if start == end == previous_end:
                # No empty match follows a match directly: the search continues one character later.
                offset = start + _get_character_width(text, start)
                pieces.append(text[start:offset])
                continue
            for part in parts:
                pieces.append(part if isinstance(part, bytes) else text[slice(*spans[part])])
            offset = previous_end = end
            if not replace_all:
                break
        pieces.append(text[offset:])
        return b"".join(pieces)

    return replace


def _parse_rewrite(rewrite: bytes) -> tuple[list[bytes | int], bool]:
    """Return the parts of a replacement, texts and indices of groups, and whether all of it is valid."""
    parts: list[bytes | int] = []
    for text, escape in re.findall(rb"([^\\]+)|\\(.?)", rewrite, re.DOTALL):
        if text or escape == b"\\":
            parts.append(text or escape)
        elif escape.isdigit():
            parts.append(int(escape))
        else:
            return parts, False
    return parts, True


def _get_character_width(text: bytes, start: int) -> int:
    """Return the number of bytes of the character at an offset; 1 for bytes that are not UTF-8."""
    for width in (1, 2, 3, 4):
        try:
            text[start : start + width].decode()
            return width
        except UnicodeDecodeError:
            continue
    return 1
