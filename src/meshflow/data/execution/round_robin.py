"""Several sequences of elements in turn, as `interleave` takes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

_NOTHING = object()


def in_turn(
    sources: Iterator[Any], opened: Callable[[Any], Iterator[Any]], cycle: int, block: int
) -> Generator[Any, None, None]:
    """Elements of the sequences that a function makes of sources.

    Args:
      sources: what the sequences are made of.
      opened: makes one.
      cycle: how many of them are open at a time.
      block: how many elements of each follow each other.
    """
    active: list[Iterator[Any] | None] = []

    def following() -> Iterator[Any] | None:
        source = next(sources, _NOTHING)
        return None if source is _NOTHING else opened(source)

    try:
        while len(active) < cycle and (first := following()) is not None:
            active.append(first)
        at = 0
        while any(a is not None for a in active):
            current = active[at]
            taken = 0
            while current is not None and taken < block:
                element = next(current, _NOTHING)
                if element is _NOTHING:
                    # A fresh one takes its whole turn in the next round, as in TensorFlow.
                    current = active[at] = following()
                    break
                taken += 1
                yield element
            at = (at + 1) % len(active)
    finally:
        for iterator in (*active, sources):
            if iterator is not None and hasattr(iterator, "close"):
                iterator.close()
