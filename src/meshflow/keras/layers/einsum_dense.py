"""Dense layer over arbitrary axes, defined by an einsum equation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import activations
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.layers.keyword_arguments import KernelArguments
from meshflow.keras.layers.weight_options import (
    KernelLayer,
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops.linalg import einsum

__all__ = ["EinsumDense"]

_Sizes = Sequence[int | None]


class EinsumDense(KernelLayer):
    """Dense layer `activation(einsum(equation, inputs, kernel) + bias)`.

    Args:
      equation: Einsum equation such as 'abc,cd->abd', '...x,xy->...y' or 'ab...,bc->ac...'.
      output_shape: Sizes of the output without the batch and the axes of `...`; None takes the size
        from the input.
      activation: Activation function, or its name.
      bias_axes: Letters of the output axes that the bias has; None for no bias.
      kernel_initializer: Initializer of the kernel; its shape follows from the equation.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint on the kernel.
      bias_constraint: Constraint on the bias.
      **kwargs: Arguments of `Layer`, and the layouts `kernel_layout` and `bias_layout`.

    Input shape:
      The axes on the left of the comma in `equation`; `...` matches any number of axes.

    Output shape:
      The axes on the right of the arrow in `equation`: the batch, followed by `output_shape`.

    Raises:
      ValueError: If, when the layer is built, the equation has another form or the sizes do not
        match it.

    Example:
      >>> layer = tf.keras.layers.EinsumDense("abc,cd->abd", (None, 64), bias_axes="d")
      >>> layer(tf.ones([2, 32, 128])).shape, layer.kernel.shape, layer.bias.shape
      (TensorShape([2, 32, 64]), TensorShape([128, 64]), TensorShape([64]))
    """

    kernel: Any = None
    bias: Any = None

    def __init__(
        self,
        equation: str,
        output_shape: int | Sequence[int | None],
        activation: Identifier = None,
        bias_axes: str | None = None,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        **kwargs: Unpack[KernelArguments],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.equation = equation
        self.partial_output_shape: _Sizes = (
            [output_shape] if isinstance(output_shape, int) else list(output_shape)
        )
        self.bias_axes = bias_axes
        self.activation = activations.get(activation)
        set_weight_options(self, locals(), "kernel", "bias")

    def build(self, input_shape: ShapeLike) -> None:
        """Create the kernel and the bias."""
        kernel, bias, output = _infer_shapes(
            self.equation,
            self.bias_axes,
            TensorShape(input_shape).as_list(),
            self.partial_output_shape,
        )
        self.full_output_shape = output
        self.kernel = add_weight(self, "kernel", kernel)
        if bias is not None:
            self.bias = add_weight(self, "bias", bias)
        self.built = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Compute the output."""
        outputs = compute_product(
            self, lambda x, w: einsum(self.equation, x, w), inputs, convert_to_tensor(self.kernel)
        )
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        sizes = TensorShape(input_shape).as_list()
        return TensorShape(_infer_shapes(self.equation, None, sizes, self.partial_output_shape)[2])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "output_shape": list(self.partial_output_shape),
            "equation": self.equation,
            "activation": activations.serialize(self.activation),
            "bias_axes": self.bias_axes,
            **make_weight_config(self, "kernel", "bias", activity=True),
        }


def _infer_shapes(
    equation: str, bias_axes: str | None, inputs: _Sizes, outputs: _Sizes
) -> tuple[_Sizes, _Sizes | None, _Sizes]:
    """Infer the shapes of the kernel, the bias (or None) and the output.

    Raises:
      ValueError: If the equation is invalid, or the sizes of a letter do not match.
    """
    match = re.fullmatch(
        r"(\.{3})?([a-zA-Z]+)(\.{3})?,([a-zA-Z]+)->(\.{3})?([a-zA-Z]+)(\.{3})?",
        equation.replace(" ", ""),
    )
    if (
        match is None
        or (match[1], match[3]) != (match[5], match[7])
        or None not in (match[1], match[3])
    ):
        raise ValueError(
            f"Invalid einsum equation '{equation}'. Equations must be in the form [X],[Y]->[Z], "
            "...[X],[Y]->...[Z], or [X]...,[Y]->[Z]...."
        )
    leading, trailing = match[1] is not None, match[3] is not None
    left, right, result = match[2], match[4], match[6]
    num_hidden = len(inputs) - len(left)
    if num_hidden < 0 or (num_hidden and not (leading or trailing)):
        raise ValueError(
            f"The input of shape {tuple(inputs)} does not have the {len(left)} dimensions of the equation '{equation}'."
        )
    if leading:
        output = [*inputs[:num_hidden], *outputs]
    else:
        output = [inputs[0], *outputs, *inputs[len(left) :]]
    expected = len(result) + num_hidden
    if len(output) < expected:
        raise ValueError(
            f"output_shape {tuple(outputs)} has too few sizes for the output '{result}' of the equation '{equation}'."
        )
    input_sizes = dict(zip(left, inputs[num_hidden if leading else 0 :], strict=False))
    output_sizes = dict(zip(result, output[num_hidden if leading else 0 :], strict=False))
    for letter, size in output_sizes.items():
        if letter in input_sizes and size is not None and size != input_sizes[letter]:
            raise ValueError(
                f"Input shape and output shape do not match at shared dimension '{letter}'. Input shape is "
                f"{input_sizes[letter]}, and output shape is {size}."
            )
        if letter not in left and letter not in right:
            raise ValueError(
                f"Dimension '{letter}' was specified in the output '{result}' but has no corresponding dim in the "
                f"input spec '{left}' or weight spec '{right}'"
            )
    for letter in right:
        if letter not in input_sizes and letter not in output_sizes:
            raise ValueError(
                f"Weight dimension '{letter}' did not have a match in either the input spec '{left}' or the output "
                f"spec '{result}'. For this layer, the weight must be fully specified."
            )
    kernel = [
        input_sizes[letter] if letter in input_sizes else output_sizes[letter] for letter in right
    ]
    if bias_axes is None:
        return kernel, None, output
    for letter in bias_axes:
        if letter not in result:
            raise ValueError(
                f"Bias dimension '{letter}' was requested, but is not part of the output spec '{result}'"
            )
    first = min(result.index(letter) for letter in bias_axes)
    sizes = {
        letter: input_sizes[letter] if size is None else size
        for letter, size in output_sizes.items()
    }
    bias = [sizes[letter] if letter in bias_axes else 1 for letter in result[first:]]
    return kernel, bias + [1] * (num_hidden if trailing else 0), output
