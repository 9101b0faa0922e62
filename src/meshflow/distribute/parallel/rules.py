"""Rules as Mesh-TensorFlow's: which mesh dimension a named dimension of tensors is split over."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.distribute.parallel.options import known_dimension
from meshflow.placement.layout import UNSHARDED, Layout, dimensions_of
from meshflow.placement.mesh import Mesh

__all__ = ["Rules"]

# What activations have and weights have not.
_OF_ACTIVATIONS = ("batch", "sequence")


class Rules:
    """Named dimensions of tensors and the mesh dimensions they are split over.

    Args:
      rules: "batch:data, hidden:model" (";" separates too, "a+b" is over two mesh dimensions), or a dictionary.
      mesh: the mesh.
      synonyms: for names that layers give, others by which rules may call them.

    Raises:
      ValueError: for what is no rule, a dimension given twice, and a mesh dimension that does not exist.
    """

    def __init__(
        self,
        rules: str | Mapping[str, Any],
        mesh: Mesh,
        synonyms: Mapping[str, str] | None = None,
    ) -> None:
        self.mesh = mesh
        self._synonyms = dict(synonyms or {})
        self.over: dict[str, str] = {}
        for name, target in _pairs(rules):
            if name in self.over:
                raise InvalidValueError(f"rules: {name!r} is given twice in {rules!r}.")
            over = dimensions_of(target, mesh)
            for dimension in over:
                known_dimension(dimension, mesh, f"the rule '{name}:{target}'")
            if len({*over}) < len(over):
                raise InvalidValueError(
                    f"rules: '{name}:{target}' splits over one dimension of the mesh twice; name each once."
                )
            self.over[name] = target
        self._used = {self._ruled(name) or name for name in _OF_ACTIVATIONS}

    def _ruled(self, name: str) -> str | None:
        """The name by which a rule calls what layers call so; None where there is no rule."""
        return next((n for n in (name, self._synonyms.get(name)) if n in self.over), None)

    def dimensions(self, name: str) -> tuple[str, ...]:
        """The mesh dimensions that a named dimension is split over.

        Args:
          name: such as "batch".
        """
        ruled = self._ruled(name)
        return () if ruled is None else dimensions_of(self.over[ruled], self.mesh)

    def layout(self, dims: Sequence[Sequence[str]], shape: Sequence[int], what: str) -> Layout:
        """The layout of a weight.

        Args:
          dims: for each axis the names that it goes by, of which the first with a rule counts.
          shape: its shape.
          what: what errors call it.

        Raises:
          ValueError: when one mesh dimension would split two axes.
          InvalidArgumentError: when an axis does not divide.
        """
        specs: list[str] = []
        taken: dict[str, tuple[int, str]] = {}
        for axis, names in enumerate(dims):
            name = next((r for r in map(self._ruled, names) if r is not None), None)
            if name is None:
                specs.append(UNSHARDED)
                continue
            self._used.add(name)
            specs.append(self.over[name])
            for dimension in self.dimensions(name):
                if dimension in taken:
                    raise InvalidValueError(
                        f"The rules split two axes of {what} over the mesh dimension {dimension!r}: axis "
                        f"{taken[dimension][0]} ({taken[dimension][1]!r}) and axis {axis} ({name!r}). One mesh "
                        "dimension can split one axis of a tensor only; rename one of them by the layer's dims=."
                    )
                taken[dimension] = axis, name
        layout = Layout(specs, self.mesh)
        for axis, (size, names) in enumerate(zip(shape, dims, strict=True)):
            parts = layout.num_shards(axis)
            if int(size) % parts:
                raise InvalidArgumentError(
                    f"{what} of shape {tuple(shape)}: axis {axis} ({' or '.join(names)}) of size {size} does not "
                    f"divide into the {parts} parts of mesh dimension {specs[axis]!r}. Choose a multiple of {parts}, "
                    "or rename the axis by the layer's dims= to leave it whole."
                )
        return layout

    def warn_of_unused(self) -> None:
        """Warns once of rules that no weight had a dimension for: a typing mistake leaves weights whole."""
        unused = [name for name in self.over if name not in self._used]
        self._used.update(unused)
        if unused:
            warnings.warn(
                f"MeshStrategy: no weight of a model has a dimension named {unused}; what no rule names is whole on "
                "every device. Layers name the axes of their weights; dims= renames them.",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return ", ".join(f"{name}:{target}" for name, target in self.over.items())


def _pairs(rules: Any) -> list[tuple[str, str]]:
    if isinstance(rules, Mapping):
        return [(str(name), _target(target)) for name, target in rules.items() if target]
    if not isinstance(rules, str):
        raise InvalidValueError(
            f"rules must be text such as 'batch:data, hidden:model', a dictionary or a LayoutMap, got {rules!r}."
        )
    pairs = []
    for rule in rules.replace(";", ",").split(","):
        if not rule.strip():
            continue
        name, colon, target = (part.strip() for part in rule.partition(":"))
        if not (name and colon and target):
            raise InvalidValueError(
                f"rules: {rule.strip()!r} in {rules!r} is no rule; expected 'dimension:mesh dimension', such as 'batch:data'."
            )
        pairs.append((name, target))
    return pairs


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, Sequence) and all(isinstance(name, str) for name in target):
        return "+".join(target)
    raise InvalidValueError(
        f"rules: expected the name of a mesh dimension, or a list of names, got {target!r}."
    )
