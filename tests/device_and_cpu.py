"""Run the same computation on the default device and on the CPU, for the comparisons of tests/gpu."""

import jax
import numpy as np

import meshflow as tf

ON_GPU = jax.default_backend() == "gpu"
# How far the norm of a difference may be from that of the reference. TensorFloat-32 keeps 10 bits of a factor.
EXACT, FLOAT32, TF32, BFLOAT16, FLOAT16 = 0.0, 2e-5, 3e-3, 2e-2, 5e-3


def values(results):
    """Return a structure of tensors as a list of NumPy arrays, bfloat16 and float16 as float32."""
    found = []
    for leaf in tf.nest.flatten(results):
        array = np.asarray(leaf.numpy() if hasattr(leaf, "numpy") else leaf)
        narrow = array.dtype.kind not in "iubc" and array.dtype.itemsize < 4
        found.append(array.astype(np.float32) if narrow else array)
    return found


def on_both(function, *arrays):
    """Return the results of a function of tensors on the default device and on the CPU, as two lists of arrays.

    Without a GPU, these are the same device, and the function runs once.
    """
    tensors = tf.nest.map_structure(tf.constant, list(arrays))
    here = values(tf.function(function, autograph=False)(*tensors))
    if not ON_GPU:
        return here, here
    with tf.device("CPU:0"):
        there = values(tf.function(function, autograph=False)(*tensors))
    return here, there


def distance(found, reference, scale=None):
    """Return the norm of the difference relative to a scale, by default the norm of the reference.

    It is infinite for other shapes, dtypes and NaNs.
    """
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return np.inf
    if found.dtype.kind in "iub":
        return 0.0 if np.array_equal(found, reference) else np.inf
    kind = np.complex128 if found.dtype.kind == "c" else np.float64
    wide, ref = found.astype(kind), reference.astype(kind)
    odd = ~np.isfinite(ref)
    if not np.array_equal(np.isnan(wide), np.isnan(ref)) or not np.array_equal(
        wide[odd & ~np.isnan(ref)], ref[odd & ~np.isnan(ref)]
    ):
        return np.inf
    wide, ref = np.where(odd, 0, wide), np.where(odd, 0, ref)
    scale = np.linalg.norm(ref) if scale is None else scale
    return float(np.linalg.norm(wide - ref) / max(scale, 1e-6))


def assert_alike(names, here, there, tolerance, scales=None):
    """Check that every result is within the tolerance of its reference, and name all that are not.

    `scales` maps names of results to the result by whose norm their distances are divided.
    """
    assert len(here) == len(there) == len(names)
    norms = {
        name: np.linalg.norm(there[names.index(other)])
        for name, other in (scales or {}).items()
        if name in names
    }
    found = {n: distance(a, b, norms.get(n)) for n, a, b in zip(names, here, there, strict=True)}
    wrong = {name: far for name, far in found.items() if not far <= tolerance}
    assert not wrong, f"beyond {tolerance}: {wrong}"
