"""Results as plain lists, for files."""

import numpy as np


def flatten(value):
    """Return the shape, and rounded elements, of each tensor of a result."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [flatten(v) for v in value]
    if hasattr(value, "to_list"):
        return [flatten(value.values), flatten(value.row_splits)]
    if isinstance(value, dict):
        return {key: flatten(v) for key, v in value.items()}
    if not hasattr(value, "numpy"):
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    array = np.asarray(value.numpy())
    if array.dtype == object or array.dtype.kind in "SU":
        elements = [x.decode() if isinstance(x, bytes) else x for x in array.ravel().tolist()]
    elif array.dtype.kind == "c":
        elements = [
            [float(f"{z.real:.6g}"), float(f"{z.imag:.6g}")] for z in array.ravel().tolist()
        ]
    elif array.dtype.kind in "biu":
        elements = array.ravel().tolist()
    else:
        elements = [float(f"{x:.6g}") for x in array.astype(float).ravel().tolist()]
    return [str(value.dtype.name), list(array.shape), elements]
