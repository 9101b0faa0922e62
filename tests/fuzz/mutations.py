"""Mutate valid files, to test their readers."""

import random
import re

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_NUMBERS += (1 << 20, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_TEXTS = (
    b"-1",
    b"0",
    b"1e999",
    b"nan",
    b"99999999999999999999",
    b"4294967296",
    b"null",
    b"[]",
    b'"',
)


def flipped(data, rng):
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
    return data


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def without(data, rng):
    first = rng.randrange(len(data))
    del data[first : first + rng.randint(1, 16)]
    return data


def doubled(data, rng):
    first, size = rng.randrange(len(data)), rng.choice((1, 4, 16, 64, 256))
    return (
        data[: first + size] * 1
        + data[first : first + size] * rng.randint(1, 8)
        + data[first + size :]
    )


def extreme(data, rng):
    """A number in the place of another, most often where headers are."""
    width = rng.choice((1, 2, 4, 8))
    end = len(data) if rng.random() < 0.4 else min(len(data), 64)
    place = rng.randrange(end)
    number = rng.choice(_NUMBERS) & (1 << 8 * width) - 1
    data[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
    return data


def noise(data, rng):
    place = rng.randrange(len(data))
    data[place:place] = rng.randbytes(rng.randint(1, 32))
    return data


def other_text(data, rng):
    """Another number or word in a text."""
    found = list(re.finditer(rb"-?\d+|true|false|null", bytes(data)))
    if not found:
        return extreme(data, rng)
    match = rng.choice(found)
    data[match.start() : match.end()] = rng.choice(_TEXTS)
    return data


_WAYS = (flipped, cut, without, doubled, extreme, extreme, noise, other_text)


def changed(data, rng):
    """A string of bytes, damaged in one to three ways."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if data:
            data = bytearray(rng.choice(_WAYS)(data, rng))
    return bytes(data)


def case(module, number):
    """The damaged file with a number.

    Half of them are damaged behind checksums and compression, where the format has such.
    """
    rng = random.Random(f"{module.__name__}:{number}")
    seeds = module.seeds()
    seed = rng.choice(seeds)
    inside = getattr(module, "inside", None)
    if inside is not None and rng.random() < 0.6:
        return inside(seed, lambda data: changed(data, rng), rng)
    return changed(seed, rng)
