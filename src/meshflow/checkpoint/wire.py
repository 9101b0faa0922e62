"""The few messages of a bundle in protocol buffers' encoding: entries, the header, and the graph of objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshflow.environment.protobuf_wire import (
    bytes_field,
    fields,
    fixed_field,
    number_field,
    signed,
)

__all__ = ["Attribute", "Entry", "Header", "Node", "Slot", "read_graph", "write_graph"]

# A part of an array: first index and length in each dimension; a length of -1 stands for the whole dimension.
Extents = tuple[tuple[int, int], ...]


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, value as an integer and value as bytes of each field."""
    for number, value in fields(data):
        if isinstance(value, int):
            yield number, value, b""
        else:
            yield number, int.from_bytes(value, "little") if len(value) <= 8 else 0, value


def _number(tag: int, value: int) -> bytes:
    return number_field(tag, value) if value else b""


def _text(tag: int, content: str) -> bytes:
    return bytes_field(tag, content.encode()) if content else b""


@dataclass
class Header:
    """What a bundle's index says of the whole."""

    shards: int = 1
    big_endian: bool = False
    min_consumer: int = 0

    def encoded(self) -> bytes:
        """The message; its version is the first of the format."""
        return _number(1, self.shards) + bytes_field(3, _number(1, 1))

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
        dims = b"".join(bytes_field(2, _number(1, d)) for d in self.shape)
        out = _number(1, self.dtype) + bytes_field(2, dims)
        out += _number(3, self.shard) + _number(4, self.offset) + _number(5, self.size)
        if self.crc32c:
            out += fixed_field(6, self.crc32c)
        for extents in self.slices:
            parts = (
                b"" if size < 0 else _number(1, start) + number_field(2, size)
                for start, size in extents
            )
            out += bytes_field(7, b"".join(bytes_field(1, part) for part in parts))
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
    return next((signed(value) for number, value, _ in _fields(dim) if number == 1), 0)


def _extent(data: bytes) -> tuple[int, int]:
    found = {number: signed(value) for number, value, _ in _fields(data)}
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
    return b"".join(bytes_field(1, _node(n, v)) for n, v in zip(nodes, valued, strict=True))


def _node(node: Node, valued: bool) -> bytes:
    out = [bytes_field(1, _number(1, at) + _text(2, name)) for name, at in node.children.items()]
    out += [
        bytes_field(2, _text(1, a.name) + _text(2, a.full_name) + _text(3, a.key))
        for a in node.attributes
    ]
    out += [
        bytes_field(3, _number(1, s.variable) + _text(2, s.name) + _number(3, s.node))
        for s in node.slots
    ]
    return b"".join(out) + bytes_field(5, _number(1, int(valued)))


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
