"""Names of the axes of weights, to which the rules of a `MeshStrategy` refer.

| layer | weight | axes |
| --- | --- | --- |
| Dense, EinsumDense, random features | kernel; bias | in, out; out |
| Dense with more outputs than inputs | kernel; bias | in or embed, out or hidden; out or hidden |
| Dense with fewer outputs than inputs | kernel; bias | in or hidden, out or embed; out or embed |
| MultiHeadAttention | query, key, value; their biases | embed, heads, key; heads, key |
| MultiHeadAttention | output; its bias | heads, key, embed; embed |
| Embedding | embeddings | vocab, embed |
| convolutions | kernel; bias | (window), in, out; out |
| LSTM, GRU, SimpleRNN | kernel; recurrent kernel; bias | in, gates; units, gates; gates |
| LayerNormalization and others | gamma, beta | channels |

For example, the rule "hidden:model" splits the wide side of the feed-forward block of a
transformer. `dims={"out": "experts"}` or `dims="in:embed, out:hidden"` renames the axes of a layer,
and `add_weight(dims="embed, hidden")` names those of a new weight; "_" is an axis without a name.
The axis of a bias has the name of the kernel's axis that it is added to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LINEAR = {"kernel": "in out", "bias": "out"}
_RECURRENT = {"kernel": "in gates", "recurrent_kernel": "units gates", "bias": "gates"}
# Keys are class names, and apply to subclasses. The names belong to the last axes if there are
# fewer names than axes.
_AXES: dict[str, dict[str, str]] = {
    "Dense": _LINEAR,
    "ConvTranspose": {"kernel": "out in", "bias": "out"},
    "Conv": _LINEAR,
    "Embedding": {"embeddings": "vocab embed"},
    "GatedCell": _RECURRENT,
    "ConvLSTMCell": _RECURRENT,
    "RandomFourierFeatures": {"unscaled_kernel": "in out", "bias": "out"},
    "_ScaleAndShiftLayer": dict.fromkeys(
        ("gamma", "beta", "moving_mean", "moving_variance"), "channels"
    ),
}
# Letters of the equations of attention layers.
_ATTENTION_LETTERS = {"d": "embed", "n": "heads", "h": "key"}


def parse_renames(dims: Mapping[str, str] | str) -> dict[str, str]:
    """Parse the `dims` argument of a layer: new names of axes by their old names."""
    if isinstance(dims, Mapping):
        return {str(name): str(new) for name, new in dims.items()}
    if isinstance(dims, str):
        pairs = [rule.partition(":") for rule in dims.split(",") if rule.strip()]
        if all(name.strip() and new.strip() for name, _, new in pairs):
            return {name.strip(): new.strip() for name, _, new in pairs}
    raise ValueError(
        f"dims must rename axes, as {{'out': 'hidden'}} or 'in:embed, out:hidden'. Received: dims={dims!r}"
    )


def get_weight_dimensions(
    layer: Any, weight: str | None, shape: Sequence[int], dims: Sequence[str] | None = None
) -> list[tuple[str, ...]] | None:
    """Return the names of each axis of a new weight, the most specific first.

    Args:
      layer: The layer.
      weight: Name of the weight.
      shape: Shape of the weight.
      dims: Names passed to `add_weight`, as a string or a sequence; None for the names that the
        class defines.

    Returns:
      A tuple of names for each axis, or None if the axes have no names.

    Raises:
      ValueError: If the number of names differs from the number of axes.
    """
    if dims is not None:
        names = [n.strip() for n in dims.split(",")] if isinstance(dims, str) else list(dims)
        if len(names) != len(shape):
            raise ValueError(
                f"Layer {layer.name}: dims={dims!r} names {len(names)} axes of the weight {weight}, which has the shape "
                f"{tuple(shape)}."
            )
    else:
        class_names = _get_dimension_names(layer, weight)
        if class_names is None:
            return None
        _check_renames(layer, weight)
        class_names = class_names[-len(shape) :] if shape else []
        names = ["_"] * (len(shape) - len(class_names)) + class_names
    renamed = layer.__dict__.get("_dims") or {}
    alternatives = (
        _name_axes_by_width(layer, weight, shape) if "Dense" in _list_class_names(layer) else {}
    )
    dimensions: list[tuple[str, ...]] = []
    for name in names:
        if name in renamed:
            dimensions.append((renamed[name],))
        else:
            dimensions.append(tuple(n for n in (alternatives.get(name), name) if n and n != "_"))
    return dimensions


def _check_renames(layer: Any, weight: str | None) -> None:
    """Check that the `dims` argument of a built-in layer renames existing axes only."""
    renamed = layer.__dict__.get("_dims")
    if not renamed or not type(layer).__module__.startswith(__name__.partition(".")[0] + "."):
        return
    weights = {w for name in _list_class_names(layer) for w in _AXES.get(name, {})} or {
        weight or ""
    }
    axes = {axis for w in (*weights, "kernel") for axis in _get_dimension_names(layer, w) or ()} - {
        "_"
    }
    unknown = [name for name in renamed if name not in axes]
    if unknown:
        raise ValueError(
            f"Layer {layer.name}: dims={renamed} renames {unknown}, and the axes of its weights are {sorted(axes)}."
        )


def _get_dimension_names(layer: Any, weight: str | None) -> list[str] | None:
    equation = getattr(layer, "_equation", None) or getattr(layer, "equation", None)
    if isinstance(equation, str) and weight in ("kernel", "bias"):
        return _name_equation_axes(equation, weight, hasattr(layer, "_equation"))
    for name in _list_class_names(layer):
        names = _AXES.get(name, {}).get(weight or "")
        if names is not None:
            return names.split()
    return None


def _name_equation_axes(equation: str, weight: str, is_attention: bool) -> list[str] | None:
    inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    data, _, kernel = inputs.partition(",")
    letters = kernel if weight == "kernel" else "".join(c for c in output if c not in data)
    if is_attention:
        return [_ATTENTION_LETTERS.get(c, "_") for c in letters]
    return [("in" if c in data else "out") for c in letters] if len(letters) <= 2 else None


def _name_axes_by_width(layer: Any, weight: str | None, shape: Sequence[int]) -> dict[str, str]:
    """Name the wider side of the kernel of a Dense layer "hidden" and the other "embed"."""
    kernel = shape if weight == "kernel" else layer.kernel.shape
    inputs, outputs = int(kernel[0]), int(kernel[-1])
    if inputs == outputs:
        return {}
    wide, narrow = ("out", "in") if outputs > inputs else ("in", "out")
    return {wide: "hidden", narrow: "embed"}


def _list_class_names(layer: Any) -> list[str]:
    return [cls.__name__ for cls in type(layer).__mro__]
