"""Mixture-of-experts layers."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from math import prod as product
from typing import Any, Unpack, cast

import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import philox
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import SeedStream
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel import dropless_experts, expert_dispatch
from meshflow.distribute.parallel.expert_dispatch import ExpertSharding
from meshflow.distribute.parallel.expert_routing import Router, RoutingStatistics
from meshflow.distribute.replicas.shares import current_shares
from meshflow.environment.types import Config
from meshflow.keras import activations, initializers
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.keyword_arguments import MixtureOfExpertsArguments
from meshflow.keras.layers.weight_options import (
    KernelLayer,
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops import array, math
from meshflow.ops.linalg import einsum
from meshflow.ops.random import count_counters
from meshflow.placement.batches import BATCH_DIMENSIONS
from meshflow.placement.layout import list_spec_dimensions

__all__ = ["MixtureOfExperts"]

# Names of the axes of an expert's weights, after the axis of the experts, in rules of a
# `MeshStrategy`.
_WEIGHT_AXES = {
    "kernel_in": ("embed", "hidden"),
    "bias_in": ("hidden",),
    "kernel_out": ("hidden", "embed"),
    "bias_out": ("embed",),
}


class MixtureOfExperts(KernelLayer):
    """Mixture of experts: networks of two dense layers, of which each token uses a few.

    A gate computes the scores `softmax(x @ gate)` of all experts for each token. The token is sent
    to the experts with the largest scores; its output is the sum of their outputs, weighted by the
    scores. An expert has slots for `capacity` times its even share of tokens. A token without a
    slot is dropped: its output is 0, so the layer is best used as `x + layer(x)`. Two losses keep
    the load of the experts balanced and the logits of the gate small.

    On a mesh that splits the first axis of the weights ("experts"), an all-to-all sends the tokens
    to the devices of their experts and back; the weights are not moved.

    Args:
      experts: Number of experts E.
      hidden: Number of units between the two layers of an expert.
      router: "top2" (Lepikhin et al. 2020, GShard, arXiv:2006.16668), "top1" (Fedus et al. 2021,
        Switch, arXiv:2101.03961), "topk:<k>" such as "topk:8", or "expert_choice", where experts
        choose tokens (Zhou et al. 2022, arXiv:2202.09368). Do not use "expert_choice" in models
        that predict the next token, because later tokens of a group influence whether an earlier
        one is processed.
      capacity: Multiple of the even share for which an expert has slots; a group has
        `ceil(k * tokens * capacity / experts)`. None drops no token, and computes all choices.
      second: "all" if "top2" always uses the second expert, or "random" to use it in training with
        probability `min(1, 2 * weight)`.
      shared: Number of experts that process every token with weight 1 (Dai et al. 2024,
        arXiv:2401.06066).
      aux: Factor of the balance loss `E * sum_e f_e * P_e`, where f is the fraction of tokens that
        chose e and P the mean score; "expert_choice" has no balance loss.
      z_loss: Factor of the mean of `logsumexp(x @ gate) ** 2` (Zoph et al. 2022, arXiv:2202.08906).
      groups: Number of groups of consecutive tokens in a batch. The tokens of a group compete for
        slots, and the experts are balanced within each group. Default: one for each device that
        batches are split over. With the same number of groups, results are the same on all meshes.
      activation: Activation function between the two layers.
      use_bias: Whether to add biases.
      kernel_initializer: Initializer of the experts' kernels, applied to each expert separately.
      bias_initializer: Initializer of the biases.
      gate_initializer: Initializer of the gate.
      kernel_regularizer: Regularizer of the kernels.
      bias_regularizer: Regularizer of the biases.
      kernel_constraint: Constraint on the kernels.
      bias_constraint: Constraint on the biases.
      seed: Seed of second="random".
      **kwargs: Arguments of `Layer`, and layouts of the weights such as `kernel_in_layout`.

    Input shape:
      (batch, ..., features).

    Output shape:
      The same as the input shape.

    Tokens with a False mask are sent to no expert and do not contribute to the losses. `fit`
    reports two metrics for each layer: `<name>_dropped`, the fraction of choices without a slot,
    and `<name>_load`, the number of choices of the busiest expert as a multiple of its even share.

    Raises:
      ValueError: If a size is not positive, the router or policy is unknown, or there are more
        choices than experts.

    Example:
      >>> layer = tf.keras.layers.MixtureOfExperts(experts=4, hidden=16, capacity=2.0)
      >>> layer(tf.ones([2, 6, 8])).shape, layer.kernel_in.shape, len(layer.losses)
      (TensorShape([2, 6, 8]), TensorShape([4, 8, 16]), 1)
    """

    kernel_in: Variable
    kernel_out: Variable
    bias_in: Variable | None
    bias_out: Variable | None

    _weights_with_layouts: tuple[str, ...] = (
        "gate",
        *_WEIGHT_AXES,
        *(f"shared_{name}" for name in _WEIGHT_AXES),
    )

    def __init__(
        self,
        experts: int,
        hidden: int,
        router: str = "top2",
        capacity: float | None = 1.25,
        second: str = "all",
        shared: int = 0,
        aux: float = 1e-2,
        z_loss: float = 0.0,
        groups: int | None = None,
        activation: Identifier = "gelu",
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        gate_initializer: Identifier = "glorot_uniform",
        kernel_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        seed: int | None = None,
        **kwargs: Unpack[MixtureOfExpertsArguments],
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"experts": experts, "hidden": hidden, "groups": 1 if groups is None else groups}
        for name, size in {**sizes, "shared": shared + 1}.items():
            if not isinstance(size, numbers.Real) or size != int(size) or size < 1:
                raise ValueError(
                    f"MixtureOfExperts {self.name}: {name} must be a positive integer "
                    f"({'or None' if name == 'groups' else 'or 0' if name == 'shared' else 'at least 1'}), got "
                    f"{shared if name == 'shared' else size!r}."
                )
        for name, weight in {"aux": aux, "z_loss": z_loss}.items():
            if not (isinstance(weight, numbers.Real) and weight >= 0):
                raise ValueError(
                    f"MixtureOfExperts {self.name}: {name} weighs a loss and must be a number of at least 0, got "
                    f"{weight!r}."
                )
        self.experts, self.hidden, self.shared = int(experts), int(hidden), int(shared)
        self.router, self.capacity, self.second = router, capacity, second
        self.aux, self.z_loss, self.groups, self.seed = aux, z_loss, groups, seed
        self._router = Router.parse(router, self.experts, capacity, second)
        self.activation, self.use_bias = activations.get(activation), use_bias
        set_weight_options(self, locals(), "kernel", "bias")
        self.gate_initializer = initializers.get(gate_initializer)
        self._stream = SeedStream(seed) if self._router.random_second else None
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: ShapeLike) -> None:
        """Create the gate, and the kernels and biases of all experts."""
        size = TensorShape(input_shape)[-1]
        if size is None:
            raise ValueError(
                f"MixtureOfExperts {self.name}: the last dimension of the inputs must be known, got {input_shape}."
            )
        self.input_spec = InputSpec(min_ndim=2, axes={-1: size})
        self.gate = self.add_weight(
            "gate",
            (size, self.experts),
            initializer=self.gate_initializer,
            dtype="float64" if self.variable_dtype == "float64" else "float32",
            experimental_autocast=False,
            dims="embed, _",
        )
        self._add_expert_weights("", (self.experts,), size, self.hidden)
        if self.shared:
            # The shared experts form one wider network: its output is the sum of their outputs.
            self._add_expert_weights("shared_", (), size, self.shared * self.hidden)
        self.built = True

    def _add_expert_weights(
        self, prefix: str, leading_axes: tuple[int, ...], size: int, hidden: int
    ) -> None:
        kernel = (
            self._scale_initializer(self.kernel_initializer)
            if leading_axes
            else self.kernel_initializer
        )
        shapes = [(size, hidden), (hidden,), (hidden, size), (size,)]
        for name, shape in zip(_WEIGHT_AXES, shapes, strict=True):
            role = name.partition("_")[0]
            weight: Variable | None = None
            if role == "kernel" or self.use_bias:
                initializer = kernel if role == "kernel" else self.bias_initializer
                weight = add_weight(
                    self,
                    prefix + name,
                    (*leading_axes, *shape),
                    role,
                    initializer=initializers.copy_unseeded(initializer),
                    dims=[*(["experts"] if leading_axes else []), *_WEIGHT_AXES[name]],
                )
            setattr(self, prefix + name, weight)

    def _scale_initializer(self, initializer: Callable[..., Any]) -> Callable[..., Any]:
        """Scale an initializer to the fan-in and fan-out of one expert."""
        if not isinstance(initializer, initializers.VarianceScaling):
            return initializer
        scale = initializer.scale * self.experts
        return initializers.VarianceScaling(
            scale,
            initializer.mode,
            cast(Any, initializer.distribution),
            initializer.seed,
        )

    def call(
        self, inputs: TensorLike, mask: Tensor | None = None, training: bool | Tensor | None = None
    ) -> Tensor:
        """Send the tokens to their experts, and combine the outputs.

        Args:
          inputs: Floating-point tensor [batch, ..., features].
          mask: bool tensor [batch, ...], False for tokens to skip.
          training: Whether second="random" applies.
        """
        size = inputs.shape[-1]
        tokens = array.reshape(inputs, [-1, size])
        if mask is None:
            live = array.ones_like(tokens[:, 0], dtype="bool")
        else:
            live = array.reshape(math.cast(mask, "bool"), [-1])
        route = self._route_dropless if self._router.capacity is None else self._route_with_capacity
        outputs, statistics = route(tokens, live, training)
        self._add_statistics(statistics, None if mask is None else live)
        if self.shared:
            outputs = outputs + self._apply_experts("shared_", tokens)
        return array.reshape(outputs, array.shape(inputs))

    def _route_with_capacity(
        self, tokens: Tensor, live: Tensor, training: bool | Tensor | None
    ) -> tuple[Tensor, RoutingStatistics]:
        exchange, groups = self._plan_exchange()
        chance = None
        if self._stream is not None:
            # All second choices are used outside of training.
            chance = apply(
                _draw_uniform, (self._stream.next_key(count_counters(*live.shape)), live)
            )
            chance = chance * math.cast(False if training is None else training, chance.dtype)
        rows, slots, weights, statistics = apply(
            _dispatch, (tokens, live, self.gate.value(), chance), (self._router, groups, exchange)
        )
        rows = self._apply_experts("", rows, exchange)
        return apply(_collect, (rows, slots, weights, tokens), (exchange,)), statistics

    def _route_dropless(
        self, tokens: Tensor, live: Tensor, training: bool | Tensor | None
    ) -> tuple[Tensor, RoutingStatistics]:
        exchange, groups = self._plan_exchange()
        rows, row_order, statistics = apply(
            _dispatch_dropless, (tokens, live, self.gate.value()), (self._router, groups, exchange)
        )
        for kernel, bias in ((self.kernel_in, self.bias_in), (self.kernel_out, self.bias_out)):
            weights = (
                self._read_local_experts(w, exchange) if w is not None else None
                for w in (kernel, bias)
            )
            rows = apply(_multiply_rows, (rows, *weights, row_order[2]), (exchange,))
            if kernel is self.kernel_in and self.activation is not None:
                rows = self.activation(rows)
        static = (self._router.choices, exchange)
        return apply(_collect_dropless, (rows, [*row_order], tokens), static), statistics

    def _apply_experts(
        self, prefix: str, rows: Tensor, exchange: ExpertSharding | None = None
    ) -> Tensor:
        """Apply the shared experts to [tokens, D], or each expert to its [slots, D]."""
        equation = "tm,mh->th" if prefix else "etm,emh->eth"
        for position in ("in", "out"):
            kernel, bias = (
                getattr(self, f"{prefix}{kind}_{position}") for kind in ("kernel", "bias")
            )
            rows = einsum(equation, rows, self._read_local_experts(kernel, exchange))
            if bias is not None:
                bias = self._read_local_experts(bias, exchange)
                rows = rows + (bias if prefix else array.expand_dims(bias, 1))
            if position == "in" and self.activation is not None:
                rows = self.activation(rows)
        return rows

    # ---- sharding of tokens and experts ------------------------------------------------------

    def _plan_exchange(self) -> tuple[ExpertSharding | None, int]:
        """Return the sharding of tokens and experts or None, and the number of local groups."""
        exchange, shares = self._make_exchange(), current_shares()
        devices = 1 if exchange is None else exchange.devices
        num_parts, num_local_parts = devices, 1
        if shares is not None:
            num_parts = shares.num_devices * shares.strategy.options.micro_batches
            num_local_parts = shares.micro_batches * (
                shares.num_devices if shares.splits_rows else 1
            )
        groups = num_parts if self.groups is None else self.groups
        if groups % num_parts:
            raise ValueError(
                f"MixtureOfExperts {self.name}: groups={groups} do not divide among the {num_parts} devices and micro-batches "
                f"that tokens are split over; use a multiple of {num_parts}."
            )
        return exchange, max(groups // num_local_parts, devices)

    def _make_exchange(self) -> ExpertSharding | None:
        strategy = getattr(self.kernel_in, "_distribute_strategy", None)
        layout, shares = self.kernel_in.layout, current_shares()
        if layout is None or (strategy is not None and not hasattr(strategy, "rules")):
            # Each replica of other strategies holds a complete model.
            return None
        mesh = layout.mesh
        split = lambda names: tuple(n for n in names if mesh.dim_size(n) > 1)
        if strategy is None:
            batch = split([n for n in mesh.dim_names if n in BATCH_DIMENSIONS][:1])
        else:
            batch = split(strategy.batch_dimensions)
        expert_dimensions = split(self._find_expert_dimensions(strategy))
        token_dimensions = (*batch, *(n for n in expert_dimensions if n not in batch))
        ragged = self._router.capacity is None and mesh.device_type() != "CPU"
        if shares is None:
            devices = product(mesh.dim_size(n) for n in token_dimensions)
            return (
                ExpertSharding(mesh.jax_mesh, token_dimensions, expert_dimensions, devices, ragged)
                if token_dimensions
                else None
            )
        if token_dimensions != batch:
            raise ValueError(
                f"MixtureOfExperts {self.name}: experts are split over {', '.join(expert_dimensions)}, the batch over "
                f"{', '.join(batch) or 'nothing'}. With {shares.strategy.options.get_non_defaults()} tokens must be split over the experts' "
                f"dimensions too: rules='batch:{'+'.join(token_dimensions)}, experts:{'+'.join(expert_dimensions)}'."
            )
        return ExpertSharding(None, batch, expert_dimensions, 1, ragged)

    def _find_expert_dimensions(self, strategy: Any) -> tuple[str, ...]:
        layout = self.kernel_in.layout
        if strategy is None or strategy.layout_map is not None:
            return list_spec_dimensions(layout.sharding_specs[0], layout.mesh)
        # Weights that zero=3 shards are gathered; those that a rule splits remain split.
        name = "experts"
        return strategy.rules.dimensions((self.__dict__.get("_dims") or {}).get(name, name))

    def _read_local_experts(self, variable: Variable, exchange: ExpertSharding | None) -> Tensor:
        """Read the weights of the experts of this device, or of all experts without an exchange."""
        if exchange is None or exchange.mesh is not None or not exchange.experts:
            return variable.value()
        return math.cast(current_shares().get_local_part(variable), self.compute_dtype)  # type: ignore[union-attr]

    def _add_statistics(self, statistics: RoutingStatistics, live: Tensor | None) -> None:
        """Add the losses and the metrics."""
        total = RoutingStatistics(*(math.reduce_sum(s, 0) for s in statistics))
        shares, tokens = current_shares(), total.live
        if shares is not None and live is not None:
            # With a mask, the devices may have different numbers of tokens.
            tokens = shares.mean_over_all_shares(math.reduce_sum(math.cast(live, tokens.dtype)))
        if self.aux and self._router.choices:
            self.add_loss(self.aux * math.divide_no_nan(total.balance, tokens))
        if self.z_loss:
            self.add_loss(self.z_loss * math.divide_no_nan(total.z, tokens))
        # Devices with more tokens have a larger weight, so that the mean over devices is the
        # fraction of all choices.
        token_weight = math.divide_no_nan(total.live, tokens)
        dropped = token_weight * total.dropped / math.maximum(total.requested, 1.0)
        self.add_metric(dropped, name=f"{self.name}_dropped")
        load = total.load if shares is None else shares.mean(total.load)
        even_load = math.maximum(math.reduce_sum(load), 1.0) / self.experts
        self.add_metric(math.reduce_max(load) / even_load, name=f"{self.name}_load")

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        names = ("experts", "hidden", "router", "capacity", "second", "shared", "aux", "z_loss")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*names, "groups", "use_bias", "seed")},
            "activation": activations.serialize(self.activation),
            **make_weight_config(self, "kernel", "bias"),
            "gate_initializer": initializers.serialize(self.gate_initializer),
        }


_draw_uniform = Op(
    "routing_chances",
    lambda operands, _: philox.draw_uniform(operands[0], operands[1].shape, np.float32),
    differentiable=False,
    is_foldable=False,
)
_dispatch = Op(
    "dispatch_to_experts",
    lambda operands, static: expert_dispatch.dispatch_tokens(*operands, *static),
    is_foldable=False,
)
_collect = Op(
    "collect_from_experts",
    lambda operands, static: expert_dispatch.combine_results(
        operands[0], operands[1], operands[2], operands[3].shape[0], static[0]
    ),
    is_foldable=False,
)
_dispatch_dropless = Op(
    "dispatch_in_turn",
    lambda operands, static: dropless_experts.dispatch_tokens(*operands, *static),
    is_foldable=False,
)
_multiply_rows = Op(
    "product_in_turn",
    lambda operands, static: dropless_experts.multiply_grouped(*operands, *static),
    is_foldable=False,
)
_collect_dropless = Op(
    "collect_in_turn",
    lambda operands, static: dropless_experts.combine_results(
        operands[0], dropless_experts.DroplessOrder(*operands[1]), operands[2].shape[0], *static
    ),
    is_foldable=False,
)
