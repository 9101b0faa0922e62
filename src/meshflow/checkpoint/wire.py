"""The few messages of a bundle in protocol buffers' encoding: entries, the header, and the graph of objects.

A message is its fields one after the other, each a number that says the field and how it is encoded,
then a variable-length integer, four or eight bytes, or a length and so many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Attribute", "Entry", "Header", "Node", "Slot", "read_graph", "varint", "write_graph"]

_VARINT, _LONG, _BYTES, _INT = 0, 1, 2, 5
_64 = 1 << 64

# A part of an array: first index and length in each dimension; a length of -1 stands for the whole dimension.
Extents = tuple[tuple[int, int], ...]


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


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, value as an integer and value as bytes of each field."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield number, value, b""
            continue
        if kind == _BYTES:
            size, at = read_varint(data, at)
        elif kind in (_LONG, _INT):
            size = 8 if kind == _LONG else 4
        else:
            raise ValueError(f"byte {at} begins no field")
        if at + size > len(data):
            raise ValueError(f"a field at byte {at} ends behind the message")
        chunk = data[at : at + size]
        at += size
        yield number, 0 if kind == _BYTES else int.from_bytes(chunk, "little"), chunk


def _number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value % _64) if value else b""


def _chunk(tag: int, content: bytes) -> bytes:
    return varint(tag << 3 | _BYTES) + varint(len(content)) + content


def _text(tag: int, content: str) -> bytes:
    return _chunk(tag, content.encode()) if content else b""


def _signed(value: int) -> int:
    return value - _64 if value >= _64 >> 1 else value


@dataclass
class Header:
    """What a bundle's index says of the whole."""

    shards: int = 1
    big_endian: bool = False
    min_consumer: int = 0

    def encoded(self) -> bytes:
        """The message; its version is the first of the format."""
        return _number(1, self.shards) + _chunk(3, _number(1, 1))

    @staticmethod
    def decoded(data: bytes) -> Header:
        """The header in a message; ValueError for bytes that are none."""
        found = Header(0)
        for number, value, chunk in _fields(data):
            if number == 1:
                found.shards = value
            elif number == 2:
                found.big_endian = bool(value)
            elif number == 3:
                found.min_consumer = next((v for n, v, _ in _fields(chunk) if n == 2), 0)
        return found


@dataclass
class Entry:
    """Where an array lies: `dtype` is TensorFlow's number, `crc32c` masked, `slices` its parts."""

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc32c: int = 0
    slices: list[Extents] = field(default_factory=list)

    def encoded(self) -> bytes:
        """The message."""
        dims = b"".join(_chunk(2, _number(1, d)) for d in self.shape)
        out = _number(1, self.dtype) + _chunk(2, dims)
        out += _number(3, self.shard) + _number(4, self.offset) + _number(5, self.size)
        if self.crc32c:
            out += varint(6 << 3 | _INT) + struct.pack("<I", self.crc32c)
        for extents in self.slices:
            parts = (
                b"" if size < 0 else _number(1, start) + varint(2 << 3) + varint(size)
                for start, size in extents
            )
            out += _chunk(7, b"".join(_chunk(1, part) for part in parts))
        return out

    @staticmethod
    def decoded(data: bytes) -> Entry:
        """The entry in a message; ValueError for bytes that are none."""
        found = Entry()
        for number, value, chunk in _fields(data):
            if number == 1:
                found.dtype = value
            elif number == 2:
                found.shape = tuple(_size(d) for n, _, d in _fields(chunk) if n == 2)
            elif number == 3:
                found.shard = value
            elif number == 4:
                found.offset = value
            elif number == 5:
                found.size = value
            elif number == 6:
                found.crc32c = value
            elif number == 7:
                found.slices.append(tuple(_extent(e) for n, _, e in _fields(chunk) if n == 1))
        if any(d < 0 for d in found.shape):
            raise ValueError(f"the shape {found.shape} has a negative size")
        return found


def _size(dim: bytes) -> int:
    return next((_signed(value) for number, value, _ in _fields(dim) if number == 1), 0)


def _extent(data: bytes) -> tuple[int, int]:
    found = {number: _signed(value) for number, value, _ in _fields(data)}
    return (found.get(1, 0), found[2]) if 2 in found else (0, -1)


@dataclass
class Attribute:
    """A value of an object: `name` says which, `full_name` is the variable's, `key` the entry's."""

    name: str
    full_name: str
    key: str


@dataclass
class Slot:
    """What an optimizer keeps for a variable; both are positions of nodes."""

    variable: int
    name: str
    node: int


@dataclass
class Node:
    """An object: what it owns, by name, its values, and an optimizer's slots."""

    children: dict[str, int] = field(default_factory=dict)
    attributes: list[Attribute] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)


def write_graph(nodes: list[Node]) -> bytes:
    """The message of a graph of objects.

    Args:
      nodes: the objects; the first is the root.
    """
    # Whether anything below an object has a value: the children have no order.
    valued = [bool(n.attributes or n.slots) for n in nodes]
    owners: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for child in node.children.values():
            owners[child].append(position)
    waiting = [i for i, v in enumerate(valued) if v]
    while waiting:
        for owner in owners[waiting.pop()]:
            if not valued[owner]:
                valued[owner] = True
                waiting.append(owner)
    return b"".join(_chunk(1, _node(n, v)) for n, v in zip(nodes, valued, strict=True))


def _node(node: Node, valued: bool) -> bytes:
    out = [_chunk(1, _number(1, at) + _text(2, name)) for name, at in node.children.items()]
    out += [
        _chunk(2, _text(1, a.name) + _text(2, a.full_name) + _text(3, a.key))
        for a in node.attributes
    ]
    out += [
        _chunk(3, _number(1, s.variable) + _text(2, s.name) + _number(3, s.node))
        for s in node.slots
    ]
    return b"".join(out) + _chunk(5, _number(1, int(valued)))


def read_graph(data: bytes) -> list[Node]:
    """The graph of objects in a message.

    Args:
      data: the message.

    Raises:
      ValueError: for bytes that are none, or nodes that refer to others that are not there.
    """
    nodes = [_read_node(chunk) for number, _, chunk in _fields(data) if number == 1]
    places = [i for n in nodes for i in n.children.values()]
    places += [i for n in nodes for s in n.slots for i in (s.variable, s.node)]
    if not nodes or any(not 0 <= i < len(nodes) for i in places):
        raise ValueError("its objects refer to others that are not there")
    return nodes


def _read_node(data: bytes) -> Node:
    node = Node()
    for number, _, chunk in _fields(data):
        if number not in (1, 2, 3):
            continue
        numbers: dict[int, int] = {}
        texts: dict[int, str] = {}
        for inner, value, content in _fields(chunk):
            numbers[inner], texts[inner] = value, content.decode()
        if number == 1:
            node.children[texts.get(2, "")] = numbers.get(1, 0)
        elif number == 2:
            node.attributes.append(Attribute(*(texts.get(i, "") for i in (1, 2, 3))))
        else:
            node.slots.append(Slot(numbers.get(1, 0), texts.get(2, ""), numbers.get(3, 0)))
    return node
