"""JAX functions and Flax modules as layers: `JaxLayer` and `FlaxLayer`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.optional_packages import import_extra
from meshflow.environment.types import Config, PyTree
from meshflow.keras import serialization
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.random import SeedGenerator, draw_seed

__all__ = ["FlaxLayer", "JaxLayer"]

_Method = str | Callable[..., Any] | None


class JaxLayer(Layer):
    """Layer that computes its outputs by a JAX function.

    Args:
      call_fn: `call_fn(params, state, rng, inputs, training)`; all parameters but `inputs` are
        optional. A function with `state` returns (outputs, new state).
      init_fn: `init_fn(rng, inputs, training)`, where `rng` and `training` are optional. Returns
        the parameters, or (parameters, state) if `call_fn` has `state`.
      params: Pytree of the parameters. Leaves that are not arrays are kept, so a module that is a
        pytree, such as an Equinox module, can be passed.
      state: Pytree of non-trainable arrays and numbers.
      seed: Seed of `rng`; default a random one.
      native_serialization_platforms: Ignored: `export` selects the platforms of a program.
      **kwargs: Arguments of `Layer`.

    Attributes:
      params: The pytree of the parameters with weights in place of arrays; None before they are
        created.
      state: The pytree of the state with weights in place of arrays; None without a state.

    Input shape:
      Any structure of tensors that the function accepts.

    Output shape:
      The structure of tensors that the function returns.

    Raises:
      ValueError: If neither `init_fn` nor the required `params` or `state` is passed, or a function
        has other parameters.

    Example:
      >>> import jax.numpy as jnp, meshflow as tf
      >>> layer = tf.keras.layers.JaxLayer(
      ...     lambda params, inputs: inputs @ params["w"], params={"w": jnp.ones([2, 1])}
      ... )
      >>> layer(tf.constant([[1.0, 2.0]])).numpy().tolist()
      [[3.0]]
    """

    def __init__(
        self,
        call_fn: Callable[..., Any],
        init_fn: Callable[..., Any] | None = None,
        params: PyTree = None,
        state: PyTree = None,
        seed: int | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.call_fn, self.init_fn = call_fn, init_fn
        self.native_serialization_platforms = native_serialization_platforms
        self._call_parameters = _check_parameters(
            call_fn, "call_fn", ("params", "state", "rng", "inputs", "training")
        )
        self.has_state = "state" in self._call_parameters
        needs_weights = self.has_state or "params" in self._call_parameters
        if init_fn is not None:
            self._init_parameters = _check_parameters(
                init_fn, "init_fn", ("rng", "inputs", "training")
            )
        elif needs_weights and params is None and (state is None or not self.has_state):
            raise ValueError(
                "`init_fn`, `params` and `state` cannot all be `None`. A layer that is read from a file needs "
                "`init_fn`, because its configuration does not contain the arrays of `params`."
            )
        if state is not None and not self.has_state:
            raise ValueError(
                "`state` was passed, but `call_fn` has no argument `state`. Add it, or leave out `state`."
            )
        self._seed = seed
        self.seed_generator = SeedGenerator(seed) if "rng" in self._call_parameters else None
        self._params = self._state = _WeightTree([])
        if params is not None:
            self._params = self._make_weight_tree(params, "params", True)
        if state is not None:
            self._state = self._make_weight_tree(state, "state", False)
        self.built = not needs_weights or (
            params is not None and (state is not None or not self.has_state)
        )

    @property
    def params(self) -> PyTree:
        """Return the parameters, with weights in place of arrays."""
        return self._params.fill(iter(self._params.variables))

    @property
    def state(self) -> PyTree:
        """Return the state, with weights in place of arrays."""
        return self._state.fill(iter(self._state.variables))

    def build(self, input_shape: PyTree) -> None:
        """Create the parameters by `init_fn`."""
        if self.init_fn is not None and not self.built:
            self._initialize(input_shape)
        self.built = True

    def _initialize(self, input_shape: PyTree) -> None:
        with init_scope():
            drawn = self.seed_generator.next() if self.seed_generator else draw_seed(self._seed)
        rng = jnp.asarray(np.asarray(drawn).astype(np.uint32))
        values = {"rng": rng, "inputs": self._make_sample(input_shape), "training": True}
        with init_scope(), jax.enable_x64(False):
            initialized = self.init_fn(**{n: values[n] for n in self._init_parameters})  # type: ignore[misc]
        if not self.has_state:
            initialized = initialized, None
        elif not isinstance(initialized, tuple) or len(initialized) != 2:
            raise ValueError(
                f"{self.name}: `init_fn` must return (params, state), as `call_fn` takes `state`. Received: {type(initialized)}"
            )
        self._params = self._make_weight_tree(initialized[0], "params", True)
        if self.has_state:
            self._state = self._make_weight_tree(initialized[1], "state", False)

    def _make_sample(self, shape: PyTree) -> PyTree:
        """Create arrays of ones in the shapes of a structure; unknown sizes become 1."""
        if hasattr(shape, "rank") or all(s is None or isinstance(s, int) for s in shape):
            return jnp.ones([1 if s is None else s for s in shape], self.compute_dtype)
        if isinstance(shape, dict):
            return {key: self._make_sample(value) for key, value in shape.items()}
        return type(shape)(self._make_sample(value) for value in shape)

    def _make_weight_tree(self, structure: PyTree, argument: str, trainable: bool) -> _WeightTree:
        """Replace the arrays of a pytree by weights of this layer."""
        flat, tree = jax.tree_util.tree_flatten_with_path(
            structure, is_leaf=lambda leaf: isinstance(leaf, Variable)
        )
        leaves = [self._make_weight(path, leaf, argument, trainable) for path, leaf in flat]
        return _WeightTree(leaves, tree)

    def _make_weight(
        self, path: tuple[Any, ...], leaf: object, argument: str, trainable: bool
    ) -> object:
        if argument == "state" and type(leaf) in (int, float):
            leaf = jnp.asarray(leaf, jnp.int32 if type(leaf) is int else jnp.float32)
        if isinstance(leaf, Variable) or not isinstance(
            leaf, (jax.Array, np.ndarray, np.generic, Tensor)
        ):
            return leaf
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        value = np.asarray(leaf)
        name = "_".join(_format_key(key) for key in path) or argument
        return self.add_weight(
            name,
            value.shape,
            value.dtype.name,
            initializer=lambda shape, dtype=None, **_: convert_to_tensor(value, dtype),
            trainable=trainable and jnp.issubdtype(value.dtype, jnp.inexact),
        )

    def call(self, inputs: PyTree, training: bool | Tensor | None = None) -> PyTree:
        """Call the function, and assign the new state."""
        weights = [*self._params.variables, *self._state.variables]
        operands = [convert_to_tensor(w) for w in weights]
        rng = [self.seed_generator.next()] if self.seed_generator else []
        arrays = [convert_to_tensor(x) for x in nest.flatten(inputs)]
        trees: list[Any] = []

        def run(operands: Any, _: Any) -> tuple[list[jax.Array], list[jax.Array]]:
            weight_values, keys, values = operands
            narrow_values = map(_narrow_to_32_bits, weight_values)
            arguments = {
                "params": self._params.fill(narrow_values),
                "state": self._state.fill(narrow_values),
                "rng": keys[0].astype(jnp.uint32) if keys else None,
                "inputs": nest.pack_sequence_as(inputs, values),
                "training": bool(training),
            }
            with jax.enable_x64(False):
                outputs = self.call_fn(**{n: arguments[n] for n in self._call_parameters})
            new: list[Any] = []
            if self.has_state:
                outputs, new = self._split_state(outputs)
            flat, tree = jax.tree_util.tree_flatten(outputs)
            trees[:] = [tree]
            return [jnp.asarray(leaf) for leaf in flat], new

        flat, new = apply(Op(self.name, run, heavy=True, is_opaque=True), (operands, rng, arrays))
        for variable, value in zip(self._state.variables, new, strict=True):
            variable.assign(value)
        return jax.tree_util.tree_unflatten(trees[0], flat)

    def _split_state(self, outputs: PyTree) -> tuple[PyTree, list[jax.Array]]:
        """Return the outputs, and the new values of the weights of the state."""
        if not isinstance(outputs, tuple) or len(outputs) != 2:
            raise ValueError(
                f"{self.name}: `call_fn` must return (outputs, state), as it takes `state`. Received: {type(outputs)}"
            )
        outputs, new = outputs
        leaves = jax.tree_util.tree_leaves(new)
        if _list_leaf_paths(new) != _list_leaf_paths(self.state):
            raise ValueError(
                f"{self.name}: `call_fn` returned a state with the leaves {_list_leaf_paths(new)}, expected {_list_leaf_paths(self.state)}."
            )
        pairs = zip(leaves, self._state.leaves, strict=True)
        # The function computes in 32 bits, but the weights may have 64.
        return outputs, [
            jnp.asarray(value, leaf.dtype.dtype)
            for value, leaf in pairs
            if isinstance(leaf, Variable)
        ]

    def get_config(self) -> Config:
        """Return the configuration; `from_config` needs registered functions."""
        return {
            **super().get_config(),
            "call_fn": self.call_fn,
            "init_fn": self.init_fn,
            "seed": self.seed_generator.seed if self.seed_generator else self._seed,
            "native_serialization_platforms": self.native_serialization_platforms,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create a layer from a configuration.

        Raises:
          ValueError: If a function is neither registered nor in `custom_objects`, or if there is no
            `init_fn`, because configurations contain no arrays.
        """
        functions = {
            key: serialization.deserialize_keras_object(config[key], custom_objects)
            for key in ("call_fn", "init_fn")
            if not callable(config[key])
        }
        return cls(**{**config, **functions})


class _WeightTree:
    """Pytree with weights in place of arrays."""

    def __init__(self, leaves: list[Any], tree: jax.tree_util.PyTreeDef | None = None) -> None:
        self.leaves, self.tree = leaves, tree

    @property
    def variables(self) -> list[Variable]:
        """Return the weights among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Variable)]

    def fill(self, values: Iterator[Any]) -> PyTree:
        """Build the pytree with the next values of an iterator in place of the weights."""
        if self.tree is None:
            return None
        leaves = [next(values) if isinstance(leaf, Variable) else leaf for leaf in self.leaves]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _narrow_to_32_bits(value: jax.Array) -> jax.Array:
    """Cast an array to the dtype that JAX uses without its 64-bit types."""
    with jax.enable_x64(False):
        narrow = jax.dtypes.canonicalize_dtype(value.dtype)
    return value if narrow == value.dtype else value.astype(narrow)


def _list_leaf_paths(structure: PyTree) -> list[str]:
    flat, _ = jax.tree_util.tree_flatten_with_path(
        structure, is_leaf=lambda leaf: isinstance(leaf, Variable)
    )
    return [jax.tree_util.keystr(path) for path, _ in flat]


def _check_parameters(function: object, argument: str, allowed: tuple[str, ...]) -> list[str]:
    """Return the allowed parameters that a function has; `inputs` is required."""
    if not callable(function):
        raise ValueError(
            f"`{argument}` must be a function, got {function!r}. To load a JaxLayer from a file, register its functions by "
            "tf.keras.saving.register_keras_serializable; otherwise save only its weights."
        )
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names += [n for n in allowed if n not in names]
    unknown = [
        p.name
        for p in parameters
        if p.name not in allowed
        and p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if "inputs" not in names:
        raise ValueError(f"`{argument}` must take the argument `inputs`, and takes {names}.")
    if unknown:
        raise ValueError(
            f"`{argument}` takes the argument `{unknown[0]}`, but may only take {list(allowed)}."
        )
    return [n for n in names if n in allowed]


def _format_key(key: object) -> str:
    """Format a key of a path in a pytree."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


class FlaxLayer(JaxLayer):
    """Layer that runs a module of Flax: a `flax.linen.Module` or a `flax.nnx.Module`.

    Args:
      module: Flax module.
      method: Method to call: a name, a method, or a function (module, inputs, training); default
        `__call__`. It may have a parameter `training`; an `nnx` module is also switched between
        training and evaluation mode.
      variables: Result of `init` of a `linen` module; by default the layer calls `init` when it is
        built.
      **kwargs: Arguments of `JaxLayer`, such as `seed`.

    Input shape:
      Any structure of tensors that the module accepts.

    Output shape:
      The structure of tensors that the module returns.

    Raises:
      ImportError: If flax is not installed.
      TypeError: If `module` is not a Flax module.

    Example:
      >>> import flax.linen, meshflow as tf  # doctest: +SKIP
      >>> layer = tf.keras.layers.FlaxLayer(flax.linen.Dense(3))  # doctest: +SKIP
      >>> layer(tf.ones([2, 4])).shape  # doctest: +SKIP
      TensorShape([2, 3])
    """

    def __init__(
        self,
        module: Any,
        method: _Method = None,
        variables: PyTree = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        flax = import_extra("flax", "flax", "FlaxLayer needs the package flax")
        nnx = import_extra("flax.nnx", "flax", "FlaxLayer needs the package flax")
        linen = import_extra("flax.linen", "flax", "FlaxLayer needs the package flax")
        if isinstance(module, nnx.Module):
            self._init_nnx(nnx, module, method, **kwargs)
        elif isinstance(module, linen.Module):
            self._init_linen(flax, module, method, variables, **kwargs)
        else:
            raise TypeError(
                f"FlaxLayer takes a flax.linen.Module or a flax.nnx.Module, got {type(module).__name__}."
            )
        self.module, self.method = module, method

    def _init_nnx(self, nnx: ModuleType, module: Any, chosen: _Method, **kwargs: Any) -> None:
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        method, takes_training = _resolve_method(chosen, type(module))

        def call(params: PyTree, state: PyTree, inputs: PyTree, training: bool) -> PyTree:
            merged = nnx.merge(graph, params, state)
            merged.train() if training else merged.eval()
            more = {"training": training} if takes_training else {}
            outputs = method(merged, inputs, **more)
            return outputs, nnx.split(merged, nnx.Param, ...)[2]

        super().__init__(call, params=params, state=rest, **kwargs)

    def _init_linen(
        self, flax: ModuleType, module: Any, method: _Method, variables: PyTree, **kwargs: Any
    ) -> None:
        _, takes_training = _resolve_method(method, type(module))
        mutable = flax.core.DenyList(["params"])

        def call(
            params: PyTree, state: PyTree, rng: jax.Array, inputs: PyTree, training: bool
        ) -> PyTree:
            more = {"training": training} if takes_training else {}
            collections = {"params": params, **(state or {})}
            outputs, new = module.apply(
                collections, inputs, rngs=_make_rngs(rng), method=method, mutable=mutable, **more
            )
            return outputs, {name: new[name] for name in (state or {})}

        def init(rng: jax.Array, inputs: PyTree, training: bool) -> tuple[PyTree, PyTree]:
            more = {"training": training} if takes_training else {}
            rest = dict(
                module.init({"params": rng, **_make_rngs(rng)}, inputs, method=method, **more)
            )
            return rest.pop("params", {}), rest

        initial_values: dict[str, Any] = {}
        if variables is not None:
            rest = dict(variables)
            initial_values = {"params": rest.pop("params", {}), "state": rest}
        super().__init__(call, init, **initial_values, **kwargs)

    def get_config(self) -> Config:
        """Return the configuration, in which the `get_config` of the module describes the module.

        Raises:
          NotImplementedError: If the module has no `get_config`.
        """
        if not hasattr(self.module, "get_config"):
            raise NotImplementedError(
                f"{self.name}: {type(self.module).__name__} has no `get_config`, so the layer has no configuration. "
                "Define `get_config` and `from_config` of the module and register its class, or save the weights "
                "(`save_weights`) and create the layer in code."
            )
        is_bound = getattr(self.method, "__self__", None) is self.module
        functions = {"call_fn", "init_fn"}
        return {
            **{key: value for key, value in super().get_config().items() if key not in functions},
            "module": serialization.serialize_keras_object(self.module),
            "method": getattr(self.method, "__name__", None) if is_bound else self.method,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create a layer from a configuration.

        Raises:
          ValueError: If the class of the module is neither registered nor in `custom_objects`.
        """
        objects = {
            key: serialization.deserialize_keras_object(config[key], custom_objects)
            for key in ("module", "method")
            if isinstance(config[key], dict)
        }
        return cls(**{**config, **objects})


def _resolve_method(method: _Method, kind: type) -> tuple[Callable[..., Any], bool]:
    """Return a method as a function of the module, and whether it has a parameter `training`."""
    function = (
        kind.__call__
        if method is None
        else getattr(kind, method)
        if isinstance(method, str)
        else method
    )
    return function, "training" in inspect.signature(function).parameters


def _make_rngs(rng: jax.Array) -> dict[str, jax.Array]:
    """Derive the random keys that Flax modules use."""
    return {"dropout": rng, "params": jax.random.fold_in(rng, 1)}
