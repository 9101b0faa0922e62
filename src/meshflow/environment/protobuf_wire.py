"""The protocol-buffer wire format, for messages that are handled without the package protobuf.

A message is a sequence of fields. Each field is a tag, which encodes the field's number and wire
type, followed by a variable-length integer, four or eight bytes, or a length and that many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TWO_TO_64 = 1 << 64


def encode_varint(value: int) -> bytes:
    r"""Encode an integer in groups of 7 bits, the lowest first.

    Args:
      value: A non-negative integer.

    Example:
      >>> encode_varint(300)
      b'\xac\x02'
    """
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode a variable-length integer.

    Args:
      data: The bytes.
      offset: Offset of the first byte of the integer.

    Returns:
      The integer, and the offset after it.

    Raises:
      ValueError: If the integer is incomplete or has more than 64 bits.
    """
    value = shift = 0
    while offset < len(data) and shift < 70:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >= _TWO_TO_64:
                break
            return value, offset
        shift += 7
    raise ValueError(f"the integer that ends at byte {offset} is incomplete or too long")


def to_signed(value: int) -> int:
    """Reinterpret an unsigned 64-bit integer as a signed one."""
    return value - _TWO_TO_64 if value >= _TWO_TO_64 >> 1 else value


def encode_integer_field(tag: int, value: int) -> bytes:
    r"""Encode an integer field; a negative value takes 64 bits.

    Example:
      >>> encode_integer_field(1, 150)
      b'\x08\x96\x01'
    """
    return encode_varint(tag << 3 | _VARINT) + encode_varint(value % _TWO_TO_64)


def encode_fixed32_field(tag: int, value: int) -> bytes:
    """Encode a field of a four-byte unsigned integer."""
    return encode_varint(tag << 3 | _FIXED32) + value.to_bytes(4, "little")


def encode_bytes_field(tag: int, content: bytes) -> bytes:
    r"""Encode a field of bytes, text or a nested message.

    Example:
      >>> encode_bytes_field(2, b"ab")
      b'\x12\x02ab'
    """
    return encode_varint(tag << 3 | _BYTES) + encode_varint(len(content)) + content


def iterate_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a message.

    Values are integers for variable-length integers, and bytes for all other types.

    Raises:
      ValueError: If the bytes are not a valid message.

    Example:
      >>> list(iterate_fields(encode_integer_field(1, 150) + encode_bytes_field(2, b"ab")))
      [(1, 150), (2, b'ab')]
    """
    offset = 0
    while offset < len(message):
        tag, offset = decode_varint(message, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, offset = decode_varint(message, offset)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, offset = decode_varint(message, offset)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"the tag that ends at byte {offset} has an unknown wire type")
        if offset + size > len(message):
            raise ValueError(f"the field at byte {offset} extends beyond the end of the message")
        yield number, message[offset : offset + size]
        offset += size
