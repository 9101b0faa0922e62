"""Protocol buffers of a bundle: index entries, the header, and the object graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshflow.environment.protobuf_wire import (
    encode_bytes_field,
    encode_fixed32_field,
    encode_integer_field,
    iterate_fields,
    to_signed,
)

# A part of an array: start and length in each dimension. A length of -1 denotes the full dimension.
Extents = tuple[tuple[int, int], ...]


def _iterate_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, integer value and bytes value of each field."""
    for number, value in iterate_fields(data):
        if isinstance(value, int):
            yield number, value, b""
        else:
            yield number, int.from_bytes(value, "little") if len(value) <= 8 else 0, value


def _encode_integer(tag: int, value: int) -> bytes:
    return encode_integer_field(tag, value) if value else b""


def _encode_text(tag: int, content: str) -> bytes:
    return encode_bytes_field(tag, content.encode()) if content else b""


@dataclass
class BundleHeader:
    """Header of a bundle's index."""

    shards: int = 1
    big_endian: bool = False
    min_consumer: int = 0

    def encode(self) -> bytes:
        """Encode the message, with version 1 of the format."""
        return _encode_integer(1, self.shards) + encode_bytes_field(3, _encode_integer(1, 1))

    @staticmethod
    def decode(data: bytes) -> BundleHeader:
        """Decode a message; raise ValueError if the bytes are not valid."""
        header = BundleHeader(0)
        for number, value, chunk in _iterate_fields(data):
            if number == 1:
                header.shards = value
            elif number == 2:
                header.big_endian = bool(value)
            elif number == 3:
                header.min_consumer = next((v for n, v, _ in _iterate_fields(chunk) if n == 2), 0)
        return header


@dataclass
class BundleEntry:
    """Location of an array.

    `dtype` is TensorFlow's enum value, `crc32c` is masked, and `slices` are the extents of the
    parts of the array.
    """

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc32c: int = 0
    slices: list[Extents] = field(default_factory=list)

    def encode(self) -> bytes:
        """Encode the message."""
        dims = b"".join(encode_bytes_field(2, _encode_integer(1, d)) for d in self.shape)
        out = _encode_integer(1, self.dtype) + encode_bytes_field(2, dims)
        out += (
            _encode_integer(3, self.shard)
            + _encode_integer(4, self.offset)
            + _encode_integer(5, self.size)
        )
        if self.crc32c:
            out += encode_fixed32_field(6, self.crc32c)
        for extents in self.slices:
            parts = (
                b"" if size < 0 else _encode_integer(1, start) + encode_integer_field(2, size)
                for start, size in extents
            )
            out += encode_bytes_field(7, b"".join(encode_bytes_field(1, part) for part in parts))
        return out

    @staticmethod
    def decode(data: bytes) -> BundleEntry:
        """Decode a message; raise ValueError if the bytes are not valid."""
        entry = BundleEntry()
        for number, value, chunk in _iterate_fields(data):
            if number == 1:
                entry.dtype = value
            elif number == 2:
                entry.shape = tuple(_decode_size(d) for n, _, d in _iterate_fields(chunk) if n == 2)
            elif number == 3:
                entry.shard = value
            elif number == 4:
                entry.offset = value
            elif number == 5:
                entry.size = value
            elif number == 6:
                entry.crc32c = value
            elif number == 7:
                entry.slices.append(
                    tuple(_decode_extent(e) for n, _, e in _iterate_fields(chunk) if n == 1)
                )
        if any(d < 0 for d in entry.shape):
            raise ValueError(f"the shape {entry.shape} has a negative size")
        return entry


def _decode_size(dim: bytes) -> int:
    return next((to_signed(value) for number, value, _ in _iterate_fields(dim) if number == 1), 0)


def _decode_extent(data: bytes) -> tuple[int, int]:
    values = {number: to_signed(value) for number, value, _ in _iterate_fields(data)}
    return (values.get(1, 0), values[2]) if 2 in values else (0, -1)


@dataclass
class ObjectAttribute:
    """Value of an object: name of the attribute, name of the variable, and key of the entry."""

    name: str
    full_name: str
    key: str


@dataclass
class SlotReference:
    """Slot of an optimizer: indices of the nodes of its variable and of the slot, and its name."""

    variable: int
    name: str
    node: int


@dataclass
class ObjectNode:
    """Object of the graph: its children by name, its values, and the slots of an optimizer."""

    children: dict[str, int] = field(default_factory=dict)
    attributes: list[ObjectAttribute] = field(default_factory=list)
    slots: list[SlotReference] = field(default_factory=list)


def encode_graph(nodes: list[ObjectNode]) -> bytes:
    """Encode an object graph.

    Args:
      nodes: The objects; the first is the root.
    """
    # Whether an object or any object below it has a value. Children may have a smaller index than
    # their owners, so the flag is propagated from children to owners.
    has_values = [bool(n.attributes or n.slots) for n in nodes]
    owners: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for child in node.children.values():
            owners[child].append(position)
    queue = [i for i, flag in enumerate(has_values) if flag]
    while queue:
        for owner in owners[queue.pop()]:
            if not has_values[owner]:
                has_values[owner] = True
                queue.append(owner)
    return b"".join(
        encode_bytes_field(1, _encode_node(n, v)) for n, v in zip(nodes, has_values, strict=True)
    )


def _encode_node(node: ObjectNode, has_values: bool) -> bytes:
    out = [
        encode_bytes_field(1, _encode_integer(1, i) + _encode_text(2, name))
        for name, i in node.children.items()
    ]
    out += [
        encode_bytes_field(
            2, _encode_text(1, a.name) + _encode_text(2, a.full_name) + _encode_text(3, a.key)
        )
        for a in node.attributes
    ]
    out += [
        encode_bytes_field(
            3, _encode_integer(1, s.variable) + _encode_text(2, s.name) + _encode_integer(3, s.node)
        )
        for s in node.slots
    ]
    return b"".join(out) + encode_bytes_field(5, _encode_integer(1, int(has_values)))


def decode_graph(data: bytes) -> list[ObjectNode]:
    """Decode an object graph.

    Args:
      data: The message.

    Raises:
      ValueError: If the bytes are not valid, or if a node refers to a node that does not exist.
    """
    nodes = [_decode_node(chunk) for number, _, chunk in _iterate_fields(data) if number == 1]
    indices = [i for n in nodes for i in n.children.values()]
    indices += [i for n in nodes for s in n.slots for i in (s.variable, s.node)]
    if not nodes or any(not 0 <= i < len(nodes) for i in indices):
        raise ValueError("its objects refer to objects that do not exist")
    return nodes


def _decode_node(data: bytes) -> ObjectNode:
    node = ObjectNode()
    for number, _, chunk in _iterate_fields(data):
        if number not in (1, 2, 3):
            continue
        numbers: dict[int, int] = {}
        texts: dict[int, str] = {}
        for inner, value, content in _iterate_fields(chunk):
            numbers[inner], texts[inner] = value, content.decode()
        if number == 1:
            node.children[texts.get(2, "")] = numbers.get(1, 0)
        elif number == 2:
            node.attributes.append(ObjectAttribute(*(texts.get(i, "") for i in (1, 2, 3))))
        else:
            node.slots.append(SlotReference(numbers.get(1, 0), texts.get(2, ""), numbers.get(3, 0)))
    return node
