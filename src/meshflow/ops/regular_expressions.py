"""Regular expressions as TensorFlow's library RE2 reads them, run by Python's `re`."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable

from meshflow.core.runtime.errors import InvalidArgumentError

# Classes of characters that are written [:name:] inside brackets.
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
    """What is inside and outside a general category of Unicode, as bodies of bracket classes."""
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
    """The body of a bracket class with the ASCII and other characters that `body` leaves out."""
    member = re.compile(f"[{body}]")
    left = [c for c in map(chr, range(128)) if not member.match(c)]
    return "".join(f"\\x{ord(c):02x}" for c in left) + r"\x80-\U0010ffff"


def _in_python(pattern: str) -> str:
    inside = False

    def change(match: re.Match[str]) -> str:
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
        # Without the flag m, RE2's $ is the very end, not the place before a last line break.
        return match[0] if inside or "m" in flags else r"\Z"

    found = re.match(r"\(\?([a-zA-Z]+)\)", pattern)
    flags = found[1] if found else ""
    return _TOKENS.sub(change, pattern)


@functools.lru_cache(256)
def compiled(pattern: str) -> re.Pattern[str]:
    """A compiled pattern.

    Args:
      pattern: in RE2's syntax: `re`'s without look-around and back references, with POSIX classes
        such as [[:space:]], categories such as \\p{L}, and \\d, \\s, \\w for ASCII only.

    Raises:
      InvalidArgumentError: when it is not valid.
    """
    try:
        return re.compile(_in_python(pattern), re.ASCII)
    except (re.error, OverflowError) as error:
        raise InvalidArgumentError(f"Invalid pattern: {pattern}, error: {error}") from None


def replacement(rewrite: str, groups: int) -> Callable[[re.Match[str]], str]:
    """What takes the place of a match.

    Args:
      rewrite: text in which \\0 stands for the match, \\1 to \\9 for groups and \\\\ for a backslash.
      groups: how many groups the pattern has.

    Raises:
      InvalidArgumentError: for other uses of the backslash, and groups that do not exist.
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
