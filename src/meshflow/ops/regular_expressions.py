"""Regular expressions in the syntax of RE2, which TensorFlow uses, executed by Python's `re`."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable

from meshflow.core.runtime.errors import InvalidArgumentError

# Character classes that are written [:name:] inside of brackets.
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_TOKENS = re.compile(
    r"\[:(?P<posix>\^?[a-z]+):\]|\\(?P<sign>[pP])(?:\{(?P<long>\^?\w+)\}|(?P<short>\w))"
    r"|(?P<unknown>\(\?(?:<?[=!]|\())|\\Q(?P<quoted>.*?)(?:\\E|$)|(?P<escape>\\.)|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<end>\$)",
    re.DOTALL,
)


@functools.cache
def _category(name: str) -> tuple[str, str]:
    """Return the characters inside and outside of a Unicode category, as bodies of bracket classes."""
    inside: list[str] = []
    outside: list[str] = []
    start = 0
    previous = None
    for point in range(sys.maxunicode + 2):
        now = None
        if point <= sys.maxunicode:
            now = unicodedata.category(chr(point)).startswith(name)
        if now != previous:
            if previous is not None:
                span = f"\\U{start:08x}-\\U{point - 1:08x}"
                (inside if previous else outside).append(span)
            start, previous = point, now
    if not inside:
        raise InvalidArgumentError(f"Invalid pattern: unknown character class \\p{{{name}}}.")
    return "".join(inside), "".join(outside)


def _outside(body: str) -> str:
    """Return a bracket class body with all characters that are not in `body`."""
    member = re.compile(f"[{body}]")
    others = [c for c in map(chr, range(128)) if not member.match(c)]
    return "".join(f"\\x{ord(c):02x}" for c in others) + r"\x80-\U0010ffff"


def _in_python(pattern: str) -> str:
    inside = False

    def translate_token(match: re.Match[str]) -> str:
        nonlocal inside
        if match["posix"]:
            name = match["posix"].lstrip("^")
            if not inside or name not in _POSIX:
                return match[0]
            return _outside(_POSIX[name]) if match["posix"].startswith("^") else _POSIX[name]
        if match["sign"]:
            name = match["long"] or match["short"]
            negative = (match["sign"] == "P") != name.startswith("^")
            body = _category(name.lstrip("^"))[negative]
            return body if inside else f"[{body}]"
        if match["unknown"] and not inside:
            raise InvalidArgumentError(
                f"Invalid pattern: {pattern}, error: invalid perl operator: {match[0]}"
            )
        if match["quoted"] is not None:
            return re.escape(match["quoted"])
        if match["escape"]:
            if match[0][1] in "123456789" and not inside:
                raise InvalidArgumentError(
                    f"Invalid pattern: {pattern}, error: invalid escape sequence: {match[0]}"
                )
            return {r"\z": r"\Z", r"\C": "(?s:.)"}.get(match[0], match[0])
        if match["open"]:
            if inside:
                return re.escape(match[0])
            inside = True
            return match[0].replace("[]", r"[\]").replace("[^]", r"[^\]")
        if match["close"]:
            inside = False
            return match[0]
        # Without the flag m, RE2's $ only matches at the very end, and not before a final line
        # break.
        return match[0] if inside or "m" in flags else r"\Z"

    prefix = re.match(r"\(\?([a-zA-Z]+)\)", pattern)
    flags = prefix[1] if prefix else ""
    return _TOKENS.sub(translate_token, pattern)


@functools.lru_cache(256)
def compiled(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern.

    Args:
      pattern: Pattern in RE2's syntax: that of `re` without look-around and back references, with
        POSIX classes such as [[:space:]], categories such as \p{L}, and \d, \s and \w for ASCII
        only.

    Raises:
      InvalidArgumentError: If the pattern is invalid.
    """
    try:
        return re.compile(_in_python(pattern), re.ASCII)
    except (re.error, OverflowError) as error:
        raise InvalidArgumentError(f"Invalid pattern: {pattern}, error: {error}") from None


def replacement(rewrite: str, groups: int) -> Callable[[re.Match[str]], str]:
    r"""Create a function that returns the replacement of a match.

    Args:
      rewrite: Text with \0 for the match, \1 to \9 for groups and \\ for a backslash.
      groups: Number of groups of the pattern.

    Raises:
      InvalidArgumentError: For other uses of the backslash, and groups that do not exist.
    """
    parts: list[str | int] = []
    for text, escape in re.findall(r"([^\\]+)|\\(.?)", rewrite, re.DOTALL):
        if text:
            parts.append(text)
        elif escape == "\\":
            parts.append(escape)
        elif escape in tuple("0123456789") and int(escape) <= groups:
            parts.append(int(escape))
        else:
            raise InvalidArgumentError(
                f"Invalid rewrite string {rewrite!r} for a pattern with {groups} groups."
            )
    return lambda match: "".join(p if isinstance(p, str) else match[p] or "" for p in parts)
