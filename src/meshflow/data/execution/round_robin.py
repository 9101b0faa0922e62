"""Round-robin iteration over several sequences of elements, as for `interleave`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

_END = object()


def interleave(
    sources: Iterator[Any], open_sequence: Callable[[Any], Iterator[Any]], cycle: int, block: int
) -> Generator[Any, None, None]:
    """Interleave the sequences that a function creates.

    Args:
      sources: Items that the sequences are created from.
      open_sequence: Function from an item to a sequence.
      cycle: Number of sequences that are open at a time.
      block: Number of consecutive elements taken from each sequence.
    """
    active: list[Iterator[Any] | None] = []

    def open_next() -> Iterator[Any] | None:
        source = next(sources, _END)
        return None if source is _END else open_sequence(source)

    try:
        while len(active) < cycle and (first := open_next()) is not None:
            active.append(first)
        position = 0
        while any(a is not None for a in active):
            current = active[position]
            taken = 0
            while current is not None and taken < block:
                element = next(current, _END)
                if element is _END:
                    # As in TensorFlow, the new sequence has to wait for its turn in the next round.
                    current = active[position] = open_next()
                    break
                taken += 1
                yield element
            position = (position + 1) % len(active)
    finally:
        for iterator in (*active, sources):
            if iterator is not None and hasattr(iterator, "close"):
                iterator.close()
