"""Layers of experts, of which each token sees a few."""

from __future__ import annotations

import numbers
from math import prod as product
from typing import Any

import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import philox
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.random import SeedStream
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel import dropless, experts
from meshflow.distribute.parallel.experts import Exchange
from meshflow.distribute.parallel.routing import Router, Statistics
from meshflow.distribute.replicas.shares import current_shares
from meshflow.keras import activations, constraints, initializers, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.core import weight_config
from meshflow.ops import array, math
from meshflow.ops.linalg import einsum
from meshflow.ops.random import counts_of
from meshflow.placement.batches import BATCH_DIMENSIONS
from meshflow.placement.layout import dimensions_of

__all__ = ["MixtureOfExperts"]

# What rules of a `MeshStrategy` call the axes of an expert's weights, behind that of the experts.
_AXES = {
    "kernel_in": ("embed", "hidden"),
    "bias_in": ("hidden",),
    "kernel_out": ("hidden", "embed"),
    "bias_out": ("embed",),
}


class MixtureOfExperts(Layer):
    """Many small networks of two dense layers, of which each token is computed by a few.

    A gate gives every token a number for each expert, `softmax(x @ gate)`; the token goes to the experts with the
    largest, and gets the sum of their outputs, weighted by these numbers. Experts have room for `capacity` times their
    even share of tokens. What finds no room is dropped: it adds nothing, so that the layer is best used as
    `x + layer(x)`. Two losses keep the gate fair and small.

    On a mesh that splits the first axis of the weights ("experts"), tokens travel to their experts and back; weights
    stay where they are.

    Args:
      experts: number of experts E.
      hidden: units between an expert's two layers.
      router: "top2" (Lepikhin et al. 2020, GShard, arXiv:2006.16668), "top1" (Fedus et al. 2021, Switch,
        arXiv:2101.03961), "topk:<k>" such as "topk:8", or "expert_choice", where experts choose tokens (Zhou et al.
        2022, arXiv:2202.09368): not for models that predict the next token, as later tokens of a group decide
        whether an earlier one is computed.
      capacity: slots of an expert in units of the even share, `ceil(k * tokens * capacity / experts)` in each group;
        None drops nothing, and computes as many rows as there are choices.
      second: whether "top2" always takes the second expert, "all", or "random"ly with probability
        `min(1, 2 * weight)`, in training.
      shared: number of experts that every token goes to as well, with weight 1 (Dai et al. 2024, arXiv:2401.06066).
      aux: factor of the balance loss `E * sum_e f_e * P_e`, where f is the share of tokens that chose e and P the
        mean of the gate's softmax; no loss with "expert_choice".
      z_loss: factor of the mean of `logsumexp(x @ gate) ** 2` (Zoph et al. 2022, arXiv:2202.08906).
      groups: in how many groups of consecutive tokens a batch falls: tokens of one group compete for slots, and experts
        are balanced in each. Default one for each device that batches are split over. Results with the same groups
        are the same on all meshes.
      activation: between the two layers.
      use_bias: whether the layers have biases.
      kernel_initializer: initializer of the experts' kernels, for each expert by itself.
      bias_initializer: initializer of the biases.
      gate_initializer: initializer of the gate.
      kernel_regularizer: penalty on the kernels.
      bias_regularizer: penalty on the biases.
      kernel_constraint: projection of the kernels.
      bias_constraint: projection of the biases.
      seed: seed of second="random".
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, ..., features).

    Output shape:
      The same.

    Tokens whose mask is False go to no expert and are in no loss. `fit` shows two metrics for each layer: the share of
    choices that found no room, `<name>_dropped`, and `<name>_load`, the busiest expert's choices in units of the
    even share.

    Raises:
      ValueError: for sizes that are not positive, an unknown router or policy, or more choices than experts.

    Example:
      >>> import meshflow as tf
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
        *_AXES,
        *(f"shared_{name}" for name in _AXES),
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
        activation: Any = "gelu",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        gate_initializer: Any = "glorot_uniform",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        seed: int | None = None,
        **kwargs: Any,
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
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.gate_initializer = initializers.get(gate_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self._stream = SeedStream(seed) if self._router.random_second else None
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Creates the gate, and kernels and biases of all experts."""
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
        self._add("", (self.experts,), size, self.hidden)
        if self.shared:
            # Shared experts are one wider network: their sum is its output.
            self._add("shared_", (), size, self.shared * self.hidden)
        self.built = True

    def _add(self, prefix: str, stack: tuple[int, ...], size: int, hidden: int) -> None:
        kernel = self._stacked(self.kernel_initializer) if stack else self.kernel_initializer
        shapes = [(size, hidden), (hidden,), (hidden, size), (size,)]
        for name, shape in zip(_AXES, shapes, strict=True):
            kind = name.partition("_")[0]
            weight: Variable | None = None
            if kind == "kernel" or self.use_bias:
                weight = self.add_weight(
                    prefix + name,
                    (*stack, *shape),
                    initializer=initializers.another(
                        kernel if kind == "kernel" else self.bias_initializer
                    ),
                    regularizer=getattr(self, f"{kind}_regularizer"),
                    constraint=getattr(self, f"{kind}_constraint"),
                    dims=[*(["experts"] if stack else []), *_AXES[name]],
                )
            setattr(self, prefix + name, weight)

    def _stacked(self, initializer: Any) -> Any:
        """An initializer of all experts' kernels at once that counts the inputs and outputs of one."""
        if not isinstance(initializer, initializers.VarianceScaling):
            return initializer
        scale = initializer.scale * self.experts
        return initializers.VarianceScaling(
            scale, initializer.mode, initializer.distribution, initializer.seed
        )

    def call(self, inputs: Any, mask: Any = None, training: Any = None) -> Any:
        """The layer's output.

        Args:
          inputs: floating tensor [batch, ..., features].
          mask: bool tensor [batch, ...], False for tokens to leave out.
          training: whether second="random" is in force.
        """
        size = inputs.shape[-1]
        tokens = array.reshape(inputs, [-1, size])
        if mask is None:
            live = array.ones_like(tokens[:, 0], dtype="bool")
        else:
            live = array.reshape(math.cast(mask, "bool"), [-1])
        route = self._without_limit if self._router.capacity is None else self._in_slots
        outputs, statistics = route(tokens, live, training)
        self._report(statistics, None if mask is None else live)
        if self.shared:
            outputs = outputs + self._network("shared_", tokens)
        return array.reshape(outputs, array.shape(inputs))

    def _in_slots(self, tokens: Any, live: Any, training: Any) -> Any:
        exchange, groups = self._exchange()
        chance = None
        if self._stream is not None:
            # Outside of training all second choices are taken.
            chance = apply(_chances, (self._stream.next_key(counts_of(*live.shape)), live))
            chance = chance * math.cast(False if training is None else training, chance.dtype)
        rows, slots, weights, statistics = apply(
            _dispatch, (tokens, live, self.gate.value(), chance), (self._router, groups, exchange)
        )
        rows = self._network("", rows, exchange)
        return apply(_collect, (rows, slots, weights, tokens), (exchange,)), statistics

    def _without_limit(self, tokens: Any, live: Any, training: Any) -> Any:
        exchange, groups = self._exchange()
        rows, turn, statistics = apply(
            _dispatch_in_turn, (tokens, live, self.gate.value()), (self._router, groups, exchange)
        )
        for kernel, bias in ((self.kernel_in, self.bias_in), (self.kernel_out, self.bias_out)):
            bias = None if bias is None else self._part(bias, exchange)
            rows = apply(_product, (rows, self._part(kernel, exchange), bias, turn[2]), (exchange,))
            if kernel is self.kernel_in and self.activation is not None:
                rows = self.activation(rows)
        static = (self._router.choices, exchange)
        return apply(_collect_in_turn, (rows, [*turn], tokens), static), statistics

    def _network(self, prefix: str, rows: Any, exchange: Exchange | None = None) -> Any:
        """Two dense layers: those of the shared experts on [tokens, D], or each expert's on its [slots, D]."""
        equation = "tm,mh->th" if prefix else "etm,emh->eth"
        for end in ("in", "out"):
            kernel, bias = (getattr(self, f"{prefix}{kind}_{end}") for kind in ("kernel", "bias"))
            rows = einsum(equation, rows, self._part(kernel, exchange))
            if bias is not None:
                bias = self._part(bias, exchange)
                rows = rows + (bias if prefix else array.expand_dims(bias, 1))
            if end == "in" and self.activation is not None:
                rows = self.activation(rows)
        return rows

    # ---- where tokens and experts lie ------------------------------------------------------

    def _exchange(self) -> tuple[Exchange | None, int]:
        """Where tokens and experts lie, None on one device, and the number of groups here."""
        exchange, shares = self._places(), current_shares()
        devices = 1 if exchange is None else exchange.devices
        whole, here = devices, 1
        if shares is not None:
            whole = shares.devices * shares.strategy.options.micro_batches
            here = shares.micro_batches * (shares.devices if shares.divided else 1)
        groups = whole if self.groups is None else self.groups
        if groups % whole:
            raise ValueError(
                f"MixtureOfExperts {self.name}: groups={groups} do not divide among the {whole} devices and micro-batches "
                f"that tokens are split over; use a multiple of {whole}."
            )
        return exchange, max(groups // here, devices)

    def _places(self) -> Exchange | None:
        strategy = getattr(self.kernel_in, "_distribute_strategy", None)
        layout, shares = self.kernel_in.layout, current_shares()
        if layout is None or (strategy is not None and not hasattr(strategy, "rules")):
            # Replicas of other strategies are whole models.
            return None
        mesh = layout.mesh
        split = lambda names: tuple(n for n in names if mesh.dim_size(n) > 1)
        if strategy is None:
            batch = split([n for n in mesh.dim_names if n in BATCH_DIMENSIONS][:1])
        else:
            batch = split(strategy.batch_dimensions)
        of_experts = split(self._dimensions_of_experts(strategy))
        of_tokens = (*batch, *(n for n in of_experts if n not in batch))
        ragged = self._router.capacity is None and mesh.device_type() != "CPU"
        if shares is None:
            devices = product(mesh.dim_size(n) for n in of_tokens)
            return (
                Exchange(mesh.jax_mesh, of_tokens, of_experts, devices, ragged)
                if of_tokens
                else None
            )
        if of_tokens != batch:
            raise ValueError(
                f"MixtureOfExperts {self.name}: experts are split over {', '.join(of_experts)}, the batch over "
                f"{', '.join(batch) or 'nothing'}. With {shares.strategy.options.chosen()} tokens must be split over the experts' "
                f"dimensions too: rules='batch:{'+'.join(of_tokens)}, experts:{'+'.join(of_experts)}'."
            )
        return Exchange(None, batch, of_experts, 1, ragged)

    def _dimensions_of_experts(self, strategy: Any) -> tuple[str, ...]:
        layout = self.kernel_in.layout
        if strategy is None or strategy.layout_map is not None:
            return dimensions_of(layout.sharding_specs[0], layout.mesh)
        # Weights that zero=3 splits are gathered; those that a rule splits stay where they are.
        name = "experts"
        return strategy.rules.dimensions((self.__dict__.get("_dims") or {}).get(name, name))

    def _part(self, variable: Variable, exchange: Exchange | None) -> Any:
        """What this device computes with: its experts, or all of them."""
        if exchange is None or exchange.mesh is not None or not exchange.experts:
            return variable.value()
        return math.cast(current_shares().local(variable), self.compute_dtype)  # type: ignore[union-attr]

    def _report(self, statistics: Any, live: Any) -> None:
        """Adds the losses and the metrics."""
        total = Statistics(*(math.reduce_sum(s, 0) for s in statistics))
        shares, tokens = current_shares(), total.live
        if shares is not None and live is not None:
            # Masks leave shares unequal numbers of tokens.
            tokens = shares.mean_of_all(math.reduce_sum(math.cast(live, tokens.dtype)))
        if self.aux and self._router.choices:
            self.add_loss(self.aux * math.divide_no_nan(total.balance, tokens))
        if self.z_loss:
            self.add_loss(self.z_loss * math.divide_no_nan(total.z, tokens))
        # Shares with more tokens count more: the mean over shares is the share of all choices.
        of_mean = math.divide_no_nan(total.live, tokens)
        dropped = of_mean * total.dropped / math.maximum(total.asked, 1.0)
        self.add_metric(dropped, name=f"{self.name}_dropped")
        load = total.load if shares is None else shares.mean(total.load)
        even = math.maximum(math.reduce_sum(load), 1.0) / self.experts
        self.add_metric(math.reduce_max(load) / even, name=f"{self.name}_load")

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        plain = ("experts", "hidden", "router", "capacity", "second", "shared", "aux", "z_loss")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*plain, "groups", "use_bias", "seed")},
            "activation": activations.serialize(self.activation),
            **weight_config(self, "kernel", "bias"),
            "gate_initializer": initializers.serialize(self.gate_initializer),
        }


_chances = Op(
    "routing_chances",
    lambda operands, _: philox.uniform(operands[0], operands[1].shape, np.float32),
    differentiable=False,
    is_foldable=False,
)
_dispatch = Op(
    "dispatch_to_experts",
    lambda operands, static: experts.dispatch(*operands, *static),
    is_foldable=False,
)
_collect = Op(
    "collect_from_experts",
    lambda operands, static: experts.collect(
        operands[0], operands[1], operands[2], operands[3].shape[0], static[0]
    ),
    is_foldable=False,
)
_dispatch_in_turn = Op(
    "dispatch_in_turn",
    lambda operands, static: dropless.dispatch(*operands, *static),
    is_foldable=False,
)
_product = Op(
    "product_in_turn",
    lambda operands, static: dropless.product(*operands, *static),
    is_foldable=False,
)
_collect_in_turn = Op(
    "collect_in_turn",
    lambda operands, static: dropless.collect(
        operands[0], dropless.Turn(*operands[1]), operands[2].shape[0], *static
    ),
    is_foldable=False,
)
