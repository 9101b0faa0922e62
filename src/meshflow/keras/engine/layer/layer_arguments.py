"""Types of the keyword arguments that the constructors of all layers and models accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from meshflow.core.values.dtypes import DTypeLike
    from meshflow.core.values.shapes import ShapeLike
    from meshflow.environment.types import ArrayLike
    from meshflow.keras.engine.layer.helpers import Identifier
    from meshflow.keras.mixed_precision.policy import Policy


class InputArguments(TypedDict, total=False):
    """Arguments that describe the inputs of a layer and its call."""

    input_shape: ShapeLike
    batch_input_shape: ShapeLike
    batch_size: int | None
    autocast: bool
    enable_caching_device: bool


class ModelArguments(InputArguments, total=False):
    """Arguments of `Model`, except for its inputs, outputs and name."""

    trainable: bool
    dtype: DTypeLike | Policy | None
    dynamic: bool


class WrapperArguments(ModelArguments, total=False):
    """Arguments of `Layer`, without weights and dimensions of the inputs."""

    name: str | None


class CommonArguments(WrapperArguments, total=False):
    """Arguments of `Layer`, without the size of the last axis of the inputs."""

    weights: Sequence[ArrayLike]
    dims: Mapping[str, str] | str


class LayerArguments(CommonArguments, total=False):
    """Arguments of `Layer` that layers with a regularizer of their output pass on."""

    input_dim: int | None


class RegularizedArguments(LayerArguments, total=False):
    """Arguments of `Layer`, including the regularizer of its output."""

    activity_regularizer: Identifier
