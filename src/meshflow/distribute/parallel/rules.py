"""Sharding rules from named dimensions of tensors to mesh dimensions, as in Mesh-TensorFlow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.distribute.parallel.options import check_dimension
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions
from meshflow.placement.mesh import Mesh

# Named dimensions of activations; no weight has them.
_ACTIVATION_DIMENSIONS = ("batch", "sequence")


class ShardingRules:
    """Mesh dimensions that named dimensions of tensors are split over.

    Args:
      rules: Text such as "batch:data, hidden:model" or a dictionary. ";" is a separator, too, and
        "a+b" splits over two mesh dimensions.
      mesh: The mesh.
      synonyms: Alternative names in the rules for names that layers use.

    Attributes:
      targets: Target of each rule: one mesh dimension, or several joined by "+".

    Raises:
      ValueError: If a rule cannot be parsed, if a dimension has two rules, or if a mesh dimension
        does not exist.
    """

    def __init__(
        self,
        rules: str | Mapping[str, str | Sequence[str]],
        mesh: Mesh,
        synonyms: Mapping[str, str] | None = None,
    ) -> None:
        self.mesh = mesh
        self._synonyms = dict(synonyms or {})
        self.targets: dict[str, str] = {}
        for name, target in _parse_rules(rules):
            if name in self.targets:
                raise InvalidValueError(f"rules: {name!r} has two rules in {rules!r}; keep one.")
            over = list_spec_dimensions(target, mesh)
            for dimension in over:
                check_dimension(dimension, mesh, f"the rule '{name}:{target}'")
            if len({*over}) < len(over):
                raise InvalidValueError(
                    f"rules: '{name}:{target}' splits over one dimension of the mesh twice; name each once."
                )
            self.targets[name] = target
        self._used = {self._find_rule(name) or name for name in _ACTIVATION_DIMENSIONS}

    def _find_rule(self, name: str) -> str | None:
        """Return the name of the rule for a dimension that layers name, or None."""
        return next((n for n in (name, self._synonyms.get(name)) if n in self.targets), None)

    def dimensions(self, name: str) -> tuple[str, ...]:
        """Return the mesh dimensions that a named dimension is split over.

        Args:
          name: Name of the dimension, such as "batch".

        Returns:
          The mesh dimensions, or an empty tuple if there is no rule.
        """
        ruled = self._find_rule(name)
        return () if ruled is None else list_spec_dimensions(self.targets[ruled], self.mesh)

    def resolve_layout(
        self, dims: Sequence[Sequence[str]], shape: Sequence[int], description: str
    ) -> Layout:
        """Return the layout of a weight.

        Args:
          dims: Names of each axis, of which the first with a rule is used.
          shape: Shape of the weight.
          description: Description of the weight for error messages.

        Returns:
          The layout.

        Raises:
          ValueError: If one mesh dimension would split two axes.
          InvalidArgumentError: If an axis size is not divisible by the number of its parts.
        """
        specs: list[str] = []
        taken: dict[str, tuple[int, str]] = {}
        for axis, names in enumerate(dims):
            name = next((r for r in map(self._find_rule, names) if r is not None), None)
            if name is None:
                specs.append(UNSHARDED)
                continue
            self._used.add(name)
            specs.append(self.targets[name])
            for dimension in self.dimensions(name):
                if dimension in taken:
                    raise InvalidValueError(
                        f"The rules split two axes of {description} over the mesh dimension {dimension!r}: axis "
                        f"{taken[dimension][0]} ({taken[dimension][1]!r}) and axis {axis} ({name!r}). One mesh "
                        "dimension can split one axis of a tensor only; rename one of them by the layer's dims=."
                    )
                taken[dimension] = axis, name
        layout = Layout(specs, self.mesh)
        for axis, (size, names) in enumerate(zip(shape, dims, strict=True)):
            parts = layout.num_shards(axis)
            if int(size) % parts:
                raise InvalidArgumentError(
                    f"{description} of shape {tuple(shape)}: axis {axis} ({' or '.join(names)}) of size {size} does not "
                    f"divide into the {parts} parts of mesh dimension {specs[axis]!r}. Choose a multiple of {parts}, "
                    "or rename the axis by the layer's dims= to leave it unsharded."
                )
        return layout

    def warn_of_unused(self) -> None:
        """Warn once about rules that no weight uses; a typing error leaves weights unsharded."""
        unused = [name for name in self.targets if name not in self._used]
        self._used.update(unused)
        if unused:
            warnings.warn(
                f"MeshStrategy: no weight of a model has a dimension named {unused}, so these rules have no effect. "
                "Layers name the axes of their weights; dims= renames them.",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return ", ".join(f"{name}:{target}" for name, target in self.targets.items())


def _parse_rules(rules: str | Mapping[str, str | Sequence[str]]) -> list[tuple[str, str]]:
    if isinstance(rules, Mapping):
        return [(str(name), _format_target(target)) for name, target in rules.items() if target]
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
                f"rules: {rule.strip()!r} in {rules!r} is not a rule; expected 'dimension:mesh dimension', such as 'batch:data'."
            )
        pairs.append((name, target))
    return pairs


def _format_target(target: object) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, Sequence) and all(isinstance(name, str) for name in target):
        return "+".join(target)
    raise InvalidValueError(
        f"rules: expected the name of a mesh dimension, or a list of names, got {target!r}."
    )
