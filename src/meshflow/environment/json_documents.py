"""Parsing of JSON from files of others, with limits on its size, depth and number of values, and its checksum."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np

from meshflow.environment.limits import load_budget_scope, spend_load_budget
from meshflow.environment.types import Json

MAX_JSON_BYTES = 64 << 20
MAX_JSON_DEPTH = 200
# An unterminated string extends to the end of the text, so each byte is visited once.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CHUNK_BYTES = 1 << 20
# Estimated memory of a list, a dictionary, and a value with its reference, in bytes.
_LIST_BYTES, _DICTIONARY_BYTES, _VALUE_BYTES = 64, 240, 64


def parse_json(content: str | bytes) -> Json:
    """Parse a JSON document of at most 64 MB and 200 levels of nested lists and dictionaries.

    The estimated memory of the result counts in the budget of the current load.

    Args:
      content: The document. Bytes are UTF-8, UTF-16 or UTF-32.

    Returns:
      Dictionaries, lists, text, numbers, Booleans and None.

    Raises:
      ValueError: If the document is invalid or exceeds a limit.
      TypeError: If it is not text.

    Example:
      >>> parse_json('{"a": [1, 2]}')
      {'a': [1, 2]}
    """
    if not isinstance(content, (str, bytes)):
        raise TypeError(f"a JSON document must be text, got {type(content).__name__}")
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(
            f"a JSON document of {len(content):,} bytes is longer than {MAX_JSON_BYTES:,}"
        )
    if isinstance(content, bytes):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    data = content.encode("utf-8", "surrogatepass")
    num_lists, num_dictionaries = data.count(b"["), data.count(b"{")
    if num_lists + num_dictionaries > MAX_JSON_DEPTH:
        _check_depth(data)
    containers = num_lists * _LIST_BYTES + num_dictionaries * _DICTIONARY_BYTES
    size = containers + data.count(b",") * _VALUE_BYTES + len(data)
    with load_budget_scope("A JSON document", len(data)):
        spend_load_budget(size, "its result")
    value: Json = json.loads(content)
    return value


def compute_json_checksum(content: Json) -> int:
    """Return the CRC-32 of parsed JSON, which does not depend on white space or the order of keys.

    Args:
      content: The result of `parse_json`.

    Example:
      >>> compute_json_checksum(parse_json('{"b": 1, "a": 2}')) == compute_json_checksum({"a": 2, "b": 1})
      True
    """
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _check_depth(data: bytes) -> None:
    brackets = _STRING.sub(b"", data).translate(None, _NON_BRACKETS)
    depth = 0
    for start in range(0, len(brackets), _CHUNK_BYTES):
        chunk = np.frombuffer(brackets, np.uint8, min(_CHUNK_BYTES, len(brackets) - start), start)
        depths = depth + np.cumsum(np.where((chunk == ord("[")) | (chunk == ord("{")), 1, -1))
        if depths.max() > MAX_JSON_DEPTH:
            raise ValueError(f"a JSON document has more than {MAX_JSON_DEPTH} nested levels")
        depth = int(depths[-1])
