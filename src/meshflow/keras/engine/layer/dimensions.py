"""What the axes of weights are called: the names that rules of a `MeshStrategy` are about.

| layer | weight | axes |
| --- | --- | --- |
| Dense, EinsumDense, random features | kernel; bias | in, out; out |
| ... of a Dense with more outputs than inputs | kernel; bias | in or embed, out or hidden; out or hidden |
| ... of a Dense with fewer | kernel; bias | in or hidden, out or embed; out or embed |
| MultiHeadAttention | query, key, value; their biases | embed, heads, key; heads, key |
| MultiHeadAttention | output; its bias | heads, key, embed; embed |
| Embedding | embeddings | vocab, embed |
| convolutions | kernel; bias | (window), in, out; out |
| LSTM, GRU, SimpleRNN | kernel; recurrent kernel; bias | in, gates; units, gates; gates |
| LayerNormalization and others | gamma, beta | channels |

So the rule "hidden:model" splits the wide side of a transformer's feed-forward part. `dims={"out": "experts"}` or
`dims="in:embed, out:hidden"` renames a layer's axes, and `add_weight(dims="embed, hidden")` names those of new weights; "_"
is an axis without a name. Biases are called as the axis of the kernel that they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["dimensions_of_weight", "renames"]

_LINEAR = {"kernel": "in out", "bias": "out"}
_RECURRENT = {"kernel": "in gates", "recurrent_kernel": "units gates", "bias": "gates"}
# By class, for subclasses too; fewer names than axes are those of the last axes.
_AXES: dict[str, dict[str, str]] = {
    "Dense": _LINEAR,
    "ConvTranspose": {"kernel": "out in", "bias": "out"},
    "Conv": _LINEAR,
    "Embedding": {"embeddings": "vocab embed"},
    "GatedCell": _RECURRENT,
    "ConvLSTMCell": _RECURRENT,
    "RandomFourierFeatures": {"unscaled_kernel": "in out", "bias": "out"},
    "_Scaled": dict.fromkeys(("gamma", "beta", "moving_mean", "moving_variance"), "channels"),
}
# The letters of attention's equations.
_LETTERS = {"d": "embed", "n": "heads", "h": "key"}


def renames(given: Any) -> dict[str, str]:
    """The names that a layer's `dims` gives its axes, by the names that they have.

    Args:
      given: a dictionary, or text such as "in:embed, out:hidden".

    Raises:
      ValueError: for anything else.
    """
    if isinstance(given, Mapping):
        return {str(name): str(new) for name, new in given.items()}
    if isinstance(given, str):
        pairs = [rule.partition(":") for rule in given.split(",") if rule.strip()]
        if all(name.strip() and new.strip() for name, _, new in pairs):
            return {name.strip(): new.strip() for name, _, new in pairs}
    raise ValueError(
        f"dims must rename axes, as {{'out': 'hidden'}} or 'in:embed, out:hidden'. Received: dims={given!r}"
    )


def dimensions_of_weight(
    layer: Any, weight: str | None, shape: Sequence[int], given: Any = None
) -> list[tuple[str, ...]] | None:
    """For each axis of a new weight the names that it goes by, the most special first.

    Args:
      layer: the layer.
      weight: the weight's name.
      shape: its shape.
      given: the names that `add_weight` was given, as text or a sequence; None for those of the layer's class.

    Returns:
      The names; None where nothing names them.

    Raises:
      ValueError: when there are not as many names as axes.
    """
    if given is not None:
        names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
        if len(names) != len(shape):
            raise ValueError(
                f"Layer {layer.name}: dims={given!r} names {len(names)} axes of the weight {weight}, which has the shape "
                f"{tuple(shape)}."
            )
    else:
        known = _known(layer, weight)
        if known is None:
            return None
        _check_renames(layer, weight)
        known = known[-len(shape) :] if shape else []
        names = ["_"] * (len(shape) - len(known)) + known
    new = layer.__dict__.get("_dims") or {}
    more = _by_width(layer, weight, shape) if "Dense" in _classes(layer) else {}
    found: list[tuple[str, ...]] = []
    for name in names:
        if name in new:
            found.append((new[name],))
        else:
            found.append(tuple(n for n in (more.get(name), name) if n and n != "_"))
    return found


def _check_renames(layer: Any, weight: str | None) -> None:
    """A renamed axis must be one of the layer's; layers of users may have more than these."""
    new = layer.__dict__.get("_dims")
    if not new or not type(layer).__module__.startswith(__name__.partition(".")[0] + "."):
        return
    weights = {w for name in _classes(layer) for w in _AXES.get(name, {})} or {weight or ""}
    axes = {axis for w in (*weights, "kernel") for axis in _known(layer, w) or ()} - {"_"}
    wrong = [name for name in new if name not in axes]
    if wrong:
        raise ValueError(
            f"Layer {layer.name}: dims={new} renames {wrong}, and the axes of its weights are {sorted(axes)}."
        )


def _known(layer: Any, weight: str | None) -> list[str] | None:
    equation = getattr(layer, "_equation", None) or getattr(layer, "equation", None)
    if isinstance(equation, str) and weight in ("kernel", "bias"):
        return _of_equation(equation, weight, hasattr(layer, "_equation"))
    for name in _classes(layer):
        found = _AXES.get(name, {}).get(weight or "")
        if found is not None:
            return found.split()
    return None


def _of_equation(equation: str, weight: str, attention: bool) -> list[str] | None:
    inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    of_data, _, kernel = inputs.partition(",")
    letters = kernel if weight == "kernel" else "".join(c for c in output if c not in of_data)
    if attention:
        return [_LETTERS.get(c, "_") for c in letters]
    return [("in" if c in of_data else "out") for c in letters] if len(letters) <= 2 else None


def _by_width(layer: Any, weight: str | None, shape: Sequence[int]) -> dict[str, str]:
    """What the axes of a Dense layer are also called: the wider side "hidden", the other "embed"."""
    kernel = shape if weight == "kernel" else layer.kernel.shape
    inputs, outputs = int(kernel[0]), int(kernel[-1])
    if inputs == outputs:
        return {}
    wide, narrow = ("out", "in") if outputs > inputs else ("in", "out")
    return {wide: "hidden", narrow: "embed"}


def _classes(layer: Any) -> list[str]:
    return [cls.__name__ for cls in type(layer).__mro__]
