"""The arguments of constructors of layers by name, and types of those that `**kwargs` contains.

The `<weight>_layout` arguments of a class are those of the weights in its `_weights_with_layouts`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from meshflow.environment.types import Config
from meshflow.keras.engine.layer.layer_arguments import (
    CommonArguments,
    LayerArguments,
    RegularizedArguments,
)
from meshflow.keras.literals import DataFormat

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.helpers import Identifier
    from meshflow.placement.layout import Layout


_Constructor = TypeVar("_Constructor", bound=Callable[..., None])

# Arguments of convolutions in the order in which TensorFlow accepts them by position.
CONVOLUTION_ORDER = (
    *("kernel_initializer", "bias_initializer", "kernel_regularizer", "bias_regularizer"),
    *("activity_regularizer", "kernel_constraint", "bias_constraint"),
)
TRANSPOSE_ORDER = ("data_format", "dilation_rate", "activation", "use_bias", *CONVOLUTION_ORDER)
SEPARABLE_ORDER = (
    *("activation", "use_bias", "depthwise_initializer", "pointwise_initializer"),
    *("bias_initializer", "depthwise_regularizer", "pointwise_regularizer", "bias_regularizer"),
    *("activity_regularizer", "depthwise_constraint", "pointwise_constraint", "bias_constraint"),
)
DEPTHWISE_ORDER = tuple(name for name in SEPARABLE_ORDER if not name.startswith("pointwise"))
NORMALIZATION_ORDER = tuple(
    f"{weight}_{option}"
    for option in ("initializer", "regularizer", "constraint")
    for weight in ("beta", "gamma")
)


# Default values by the name of an argument or by the part after its last underscore; others are None.
_DEFAULTS = {
    "use_bias": True,
    "bias_initializer": "zeros",
    "beta_initializer": "zeros",
    "gamma_initializer": "ones",
    "initializer": "glorot_uniform",
}


def _add_parameters(constructor: Callable[..., None], names: Sequence[str]) -> inspect.Signature:
    """Return the signature of a constructor with arguments in its `**kwargs`, which programs inspect."""
    *own, rest = inspect.signature(constructor).parameters.values()
    own = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in own}
    added = []
    for name in names:
        default = _DEFAULTS.get(name, _DEFAULTS.get(name.rpartition("_")[2]))
        if name == "dilation_rate":
            default = defaults["strides"]
        added.append(inspect.Parameter(name, own[0].kind, default=default))
    return inspect.Signature([*own, *added, rest])


def accept_positional(names: Sequence[str]) -> Callable[[_Constructor], _Constructor]:
    """Return a decorator of a constructor that accepts arguments in its `**kwargs` also by position.

    Args:
      names: Names of these arguments, in the order in which they follow the others.

    Example:
      >>> layer = tf.keras.layers.LayerNormalization(-1, 0.001, True, True, "ones")
      >>> type(layer.beta_initializer).__name__
      'Ones'
    """

    def decorate(constructor: _Constructor) -> _Constructor:
        # The count includes `self`.
        count = constructor.__code__.co_argcount - 1

        @functools.wraps(constructor)
        def construct(self: object, *args: Any, **kwargs: Any) -> None:
            if count < len(args) <= count + len(names):
                named = dict(zip(names, args[count:], strict=False))
                constructor(self, *args[:count], **named, **kwargs)
            else:
                constructor(self, *args, **kwargs)

        construct.__signature__ = _add_parameters(constructor, names)  # type: ignore[attr-defined]
        return construct  # type: ignore[return-value]

    return decorate


def get_arguments(variables: Mapping[str, Any], *excluded: str) -> Config:
    """Return the arguments of a constructor, which it passes to its base class.

    Args:
      variables: `locals()` of the constructor, with the further arguments in `kwargs`.
      *excluded: Names of variables that are not arguments of the base class.
    """
    others = ("self", "__class__", "kwargs", *excluded)
    return {k: v for k, v in variables.items() if k not in others} | variables["kwargs"]


class EmbeddingArguments(CommonArguments, total=False):
    """Further arguments of `Embedding`."""

    embeddings_layout: Layout | None


class KernelArguments(LayerArguments, total=False):
    """Further arguments of layers with a kernel and a bias."""

    kernel_layout: Layout | None
    bias_layout: Layout | None


class LeakyReLUArguments(LayerArguments, total=False):
    """Further arguments of `LeakyReLU`."""

    negative_slope: float


class ConvolutionArguments(KernelArguments, RegularizedArguments, total=False):
    """Further arguments of convolutions."""

    kernel_initializer: Identifier
    bias_initializer: Identifier
    kernel_regularizer: Identifier
    bias_regularizer: Identifier
    kernel_constraint: Identifier
    bias_constraint: Identifier


class ConvTransposeArguments(ConvolutionArguments, total=False):
    """Further arguments of transposed convolutions."""

    data_format: DataFormat | None
    dilation_rate: int | Sequence[int]
    groups: int
    activation: Identifier
    use_bias: bool


class DepthwiseArguments(RegularizedArguments, total=False):
    """Further arguments of `DepthwiseConv2D`."""

    groups: int
    kernel_initializer: Identifier
    kernel_regularizer: Identifier
    bias_regularizer: Identifier
    kernel_constraint: Identifier
    bias_constraint: Identifier
    depthwise_layout: Layout | None
    bias_layout: Layout | None


class Depthwise1DArguments(DepthwiseArguments, total=False):
    """Further arguments of `DepthwiseConv1D`."""

    activation: Identifier
    use_bias: bool
    depthwise_initializer: Identifier
    bias_initializer: Identifier
    depthwise_regularizer: Identifier
    depthwise_constraint: Identifier


class SeparableArguments(Depthwise1DArguments, total=False):
    """Further arguments of `SeparableConv1D` and `SeparableConv2D`."""

    pointwise_initializer: Identifier
    pointwise_regularizer: Identifier
    pointwise_constraint: Identifier
    pointwise_layout: Layout | None


class CellArguments(RegularizedArguments, total=False):
    """Further arguments of recurrent cells."""

    implementation: int
    kernel_layout: Layout | None
    recurrent_layout: Layout | None
    bias_layout: Layout | None


class RecurrentArguments(LayerArguments, total=False):
    """Further arguments of recurrent layers with one kind of cell."""

    implementation: int
    input_length: int | None
    zero_output_for_mask: bool
    kernel_layout: Layout | None
    recurrent_layout: Layout | None
    bias_layout: Layout | None


class RNNArguments(RegularizedArguments, total=False):
    """Further arguments of `RNN`."""

    zero_output_for_mask: bool


class ProjectionArguments(RegularizedArguments, total=False):
    """Further arguments of attention layers with kernels."""

    kernel_regularizer: Identifier
    bias_regularizer: Identifier
    kernel_constraint: Identifier
    bias_constraint: Identifier
    kernel_layout: Layout | None
    bias_layout: Layout | None


class AttentionArguments(RegularizedArguments, total=False):
    """Further arguments of `Attention` and `AdditiveAttention`."""

    causal: bool
    scale_layout: Layout | None
    concat_score_weight_layout: Layout | None


class RandomImageArguments(RegularizedArguments, total=False):
    """Further arguments of layers that augment images."""

    force_generator: bool
    rng_type: str | None


class EncodingArguments(RegularizedArguments, total=False):
    """Former names of arguments of encoding layers."""

    bins: int | Sequence[float]
    max_tokens: int | None


class LookupArguments(RegularizedArguments, total=False):
    """Further arguments of `StringLookup` and `IntegerLookup`, which configurations contain."""

    vocabulary_size: int | None
    has_input_vocabulary: bool
    has_static_table: bool
    max_values: int | None
    mask_value: int | None
    oov_value: int


class _GammaBetaLayouts(RegularizedArguments, total=False):
    gamma_layout: Layout | None
    beta_layout: Layout | None


class BatchNormalizationArguments(_GammaBetaLayouts, total=False):
    """Further arguments of `BatchNormalization`."""

    fused: bool | None
    renorm: bool
    renorm_clipping: Mapping[str, Any] | None
    renorm_momentum: float
    virtual_batch_size: int | None
    adjustment: Any
    moving_mean_layout: Layout | None
    moving_variance_layout: Layout | None


class NormalizationArguments(_GammaBetaLayouts, total=False):
    """Further arguments of `LayerNormalization` and `GroupNormalization`."""

    beta_initializer: Identifier
    gamma_initializer: Identifier
    beta_regularizer: Identifier
    gamma_regularizer: Identifier
    beta_constraint: Identifier
    gamma_constraint: Identifier


class MixtureOfExpertsArguments(RegularizedArguments, total=False):
    """Further arguments of `MixtureOfExperts`."""

    gate_layout: Layout | None
    kernel_in_layout: Layout | None
    bias_in_layout: Layout | None
    kernel_out_layout: Layout | None
    bias_out_layout: Layout | None
    shared_kernel_in_layout: Layout | None
    shared_bias_in_layout: Layout | None
    shared_kernel_out_layout: Layout | None
    shared_bias_out_layout: Layout | None
