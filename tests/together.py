"""Combine many small computations into a few compiled programs."""

import functools

import helpers
import meshflow as tf


def together(compute, keys, arrays, size=30):
    """Return a function of a key that computes `compute(key, arrays)` together with neighbouring
    keys.

    The tensors of `size` keys are traced into one `tf.function`, as operands or results with
    unknown values. Keys whose result is not numeric, or that fail there, are computed separately
    and eagerly, as is everything in `make test-all`.

    Args:
        compute: a function of a key and of `arrays`.
        keys: the keys, hashable.
        arrays: a nest of tensors for `compute`.
        size: the number of keys in a program.

    Returns:
        A function of a key.
    """
    keys = list(keys)
    place = {key: number // size for number, key in enumerate(keys)}

    @functools.cache
    def batch(number):
        chosen = keys[number * size : (number + 1) * size]

        def run(arrays):
            return [_numbers(compute, key, arrays) for key in chosen]

        try:
            found = tf.function(run, autograph=False)(arrays)
        except Exception:
            return {}
        return {key: one for key, one in zip(chosen, found, strict=True) if one is not None}

    def result(key):
        found = {} if helpers.SOAK or key not in place else batch(place[key])
        return found[key] if key in found else compute(key, arrays)

    return result


def _numbers(compute, key, arrays):
    """Return the result of `compute` if it consists of numeric tensors, None for other results or
    an error."""
    try:
        found = compute(key, arrays)
    except Exception:
        return None
    leaves = tf.nest.flatten(found, expand_composites=True)
    plain = all(tf.is_tensor(leaf) and leaf.dtype != tf.string for leaf in leaves)
    return found if plain and leaves else None
