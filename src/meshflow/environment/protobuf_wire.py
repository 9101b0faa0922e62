"""Protocol buffers' encoding, for the few messages that are read and written without the package protobuf.

A message is its fields one after the other, each a number that says the field and how it is encoded,
then a variable-length integer, four or eight bytes, or a length and so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = [
    "bytes_field",
    "fields",
    "fixed_field",
    "number_field",
    "read_varint",
    "signed",
    "varint",
]

_VARINT, _LONG, _BYTES, _INT = 0, 1, 2, 5
_64 = 1 << 64


def varint(number: int) -> bytes:
    """A number in groups of 7 bits, the lowest first.

    Args:
      number: at least 0.

    Example:
      >>> varint(300)
      b'\\xac\\x02'
    """
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """What `varint` wrote, and the position after it.

    Args:
      data: bytes.
      at: where it begins.

    Raises:
      ValueError: when it does not end, or has more than 64 bits.
    """
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >= _64:
                break
            return number, at
        shift += 7
    raise ValueError(f"a number at byte {at} does not end")


def signed(value: int) -> int:
    """A number of 64 bits of which the highest is a sign."""
    return value - _64 if value >= _64 >> 1 else value


def number_field(tag: int, value: int) -> bytes:
    """A field that is an integer; negative ones have 64 bits.

    Example:
      >>> number_field(1, 150)
      b'\\x08\\x96\\x01'
    """
    return varint(tag << 3 | _VARINT) + varint(value % _64)


def fixed_field(tag: int, value: int) -> bytes:
    """A field that is an integer of four bytes."""
    return varint(tag << 3 | _INT) + value.to_bytes(4, "little")


def bytes_field(tag: int, content: bytes) -> bytes:
    """A field that is bytes, text or a message.

    Example:
      >>> bytes_field(2, b"ab")
      b'\\x12\\x02ab'
    """
    return varint(tag << 3 | _BYTES) + varint(len(content)) + content


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message one by one: their numbers, and integers or bytes.

    Raises:
      ValueError: for bytes that are no message.

    Example:
      >>> list(fields(number_field(1, 150) + bytes_field(2, b"ab")))
      [(1, 150), (2, b'ab')]
    """
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = read_varint(message, at)
        elif kind in (_LONG, _INT):
            size = 8 if kind == _LONG else 4
        else:
            raise ValueError(f"byte {at} begins no field")
        if at + size > len(message):
            raise ValueError(f"a field at byte {at} ends behind the message")
        yield number, message[at : at + size]
        at += size
