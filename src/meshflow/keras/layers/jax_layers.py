"""Functions and modules of JAX as layers: `JaxLayer` and `FlaxLayer`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

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
from meshflow.environment.extras import load
from meshflow.keras import serialization
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.random import SeedGenerator, draw_seed

__all__ = ["FlaxLayer", "JaxLayer"]


class JaxLayer(Layer):
    """A layer whose computation is a function of JAX.

    Args:
      call_fn: `call_fn(params, state, rng, inputs, training)`, of which all but `inputs` may be left out. With
        `state` it returns (outputs, new state).
      init_fn: `init_fn(rng, inputs, training)`, of which `rng` and `training` may be left out; returns the
        parameters, with `state` (parameters, state).
      params: a structure (pytree) of the parameters; what is no array in it stays as it is, so that modules which
        are pytrees, such as Equinox's, can be given themselves.
      state: a structure of values that are not trained, numbers among them.
      seed: the seed of `rng`; default a random one.
      native_serialization_platforms: accepted: programs are written for the platforms that `export` is asked for.
      **kwargs: arguments of `Layer`.

    Attributes:
      params: the structure of the parameters with weights in place of arrays, None before they are made.
      state: that of the state, None without one.

    Input shape:
      What the function takes.

    Output shape:
      What the function gives.

    Raises:
      ValueError: when neither `init_fn` nor what it would make is given, or a function has other arguments.

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
        params: Any = None,
        state: Any = None,
        seed: int | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.call_fn, self.init_fn = call_fn, init_fn
        self.native_serialization_platforms = native_serialization_platforms
        self._call_takes = _parameters(
            call_fn, "call_fn", ("params", "state", "rng", "inputs", "training")
        )
        self.has_state = "state" in self._call_takes
        wanted = self.has_state or "params" in self._call_takes
        if init_fn is not None:
            self._init_takes = _parameters(init_fn, "init_fn", ("rng", "inputs", "training"))
        elif wanted and params is None and (state is None or not self.has_state):
            raise ValueError(
                "`init_fn`, `params` and `state` cannot all be `None`. A layer that is read from a file needs "
                "`init_fn`: the arrays given as `params` are no part of its configuration."
            )
        if state is not None and not self.has_state:
            raise ValueError("`state` was given, but `call_fn` has no argument `state`.")
        self._seed = seed
        self.seed_generator = SeedGenerator(seed) if "rng" in self._call_takes else None
        self._params = self._state = _Leaves([])
        if params is not None:
            self._params = self._held(params, "params", True)
        if state is not None:
            self._state = self._held(state, "state", False)
        self.built = not wanted or (
            params is not None and (state is not None or not self.has_state)
        )

    @property
    def params(self) -> Any:
        """The parameters, with weights in place of arrays."""
        return self._params.filled(iter(self._params.variables))

    @property
    def state(self) -> Any:
        """The state, with weights in place of arrays."""
        return self._state.filled(iter(self._state.variables))

    def build(self, input_shape: Any) -> None:
        """Makes the parameters by `init_fn`."""
        if self.init_fn is not None and not self.built:
            self._initialize(input_shape)
        self.built = True

    def _initialize(self, input_shape: Any) -> None:
        with init_scope():
            drawn = self.seed_generator.next() if self.seed_generator else draw_seed(self._seed)
        rng = jnp.asarray(np.asarray(drawn).astype(np.uint32))
        values = {"rng": rng, "inputs": self._blank(input_shape), "training": True}
        with init_scope(), jax.enable_x64(False):
            made = self.init_fn(**{n: values[n] for n in self._init_takes})  # type: ignore[misc]
        if not self.has_state:
            made = made, None
        elif not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(
                f"{self.name}: `init_fn` must return (params, state), as `call_fn` takes `state`. Received: {type(made)}"
            )
        self._params = self._held(made[0], "params", True)
        if self.has_state:
            self._state = self._held(made[1], "state", False)

    def _blank(self, shape: Any) -> Any:
        """Ones of a shape, or of each shape of a structure; sizes that are not known are 1."""
        if hasattr(shape, "rank") or all(s is None or isinstance(s, int) for s in shape):
            return jnp.ones([1 if s is None else s for s in shape], self.compute_dtype)
        if isinstance(shape, dict):
            return {key: self._blank(value) for key, value in shape.items()}
        return type(shape)(self._blank(value) for value in shape)

    def _held(self, structure: Any, what: str, trainable: bool) -> _Leaves:
        """The structure with a weight of this layer in place of each array."""
        flat, tree = jax.tree_util.tree_flatten_with_path(
            structure, is_leaf=lambda leaf: isinstance(leaf, Variable)
        )
        leaves = [self._weight(path, leaf, what, trainable) for path, leaf in flat]
        return _Leaves(leaves, tree)

    def _weight(self, path: Any, leaf: Any, what: str, trainable: bool) -> Any:
        if what == "state" and type(leaf) in (int, float):
            leaf = jnp.asarray(leaf, jnp.int32 if type(leaf) is int else jnp.float32)
        if isinstance(leaf, Variable) or not isinstance(
            leaf, (jax.Array, np.ndarray, np.generic, Tensor)
        ):
            return leaf
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        value = np.asarray(leaf)
        name = "_".join(_name(key) for key in path) or what
        return self.add_weight(
            name,
            value.shape,
            value.dtype.name,
            initializer=lambda shape, dtype=None, **_: convert_to_tensor(value, dtype),
            trainable=trainable and jnp.issubdtype(value.dtype, jnp.inexact),
        )

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The function's outputs."""
        weights = [*self._params.variables, *self._state.variables]
        operands = [convert_to_tensor(w) for w in weights]
        rng = [self.seed_generator.next()] if self.seed_generator else []
        arrays = [convert_to_tensor(x) for x in nest.flatten(inputs)]
        found: list[Any] = []

        def run(given: Any, _: Any) -> Any:
            held, keys, values = given
            supply = map(_in_32_bits, held)
            arguments = {
                "params": self._params.filled(supply),
                "state": self._state.filled(supply),
                "rng": keys[0].astype(jnp.uint32) if keys else None,
                "inputs": nest.pack_sequence_as(inputs, values),
                "training": bool(training),
            }
            with jax.enable_x64(False):
                outputs = self.call_fn(**{n: arguments[n] for n in self._call_takes})
            new: list[Any] = []
            if self.has_state:
                outputs, new = self._split_state(outputs)
            flat, tree = jax.tree_util.tree_flatten(outputs)
            found[:] = [tree]
            return [jnp.asarray(leaf) for leaf in flat], new

        flat, new = apply(Op(self.name, run, heavy=True, is_opaque=True), (operands, rng, arrays))
        for variable, value in zip(self._state.variables, new, strict=True):
            variable.assign(value)
        return jax.tree_util.tree_unflatten(found[0], flat)

    def _split_state(self, outputs: Any) -> tuple[Any, list[Any]]:
        """The outputs, and the new values of the state's weights."""
        if not isinstance(outputs, tuple) or len(outputs) != 2:
            raise ValueError(
                f"{self.name}: `call_fn` must return (outputs, state), as it takes `state`. Received: {type(outputs)}"
            )
        outputs, new = outputs
        leaves = jax.tree_util.tree_leaves(new)
        if _paths(new) != _paths(self.state):
            raise ValueError(
                f"{self.name}: `call_fn` returned a state with the leaves {_paths(new)}, expected {_paths(self.state)}."
            )
        pairs = zip(leaves, self._state.leaves, strict=True)
        # Computed in 32 bits, while what is held may have been made in 64.
        return outputs, [
            jnp.asarray(value, held.dtype.dtype)
            for value, held in pairs
            if isinstance(held, Variable)
        ]

    def get_config(self) -> dict[str, Any]:
        """The configuration; functions must be registered for it to be read again."""
        return {
            **super().get_config(),
            "call_fn": self.call_fn,
            "init_fn": self.init_fn,
            "seed": self.seed_generator.seed if self.seed_generator else self._seed,
            "native_serialization_platforms": self.native_serialization_platforms,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer with a configuration.

        Raises:
          ValueError: for functions that are neither registered nor in `custom_objects`, and without `init_fn`, as
            arrays are in no configuration.
        """
        functions = {
            key: serialization.deserialize_keras_object(config[key], custom_objects)
            for key in ("call_fn", "init_fn")
            if not callable(config[key])
        }
        return cls(**{**config, **functions})


class _Leaves:
    """The leaves of a pytree, weights in place of arrays, and how to put them together."""

    def __init__(self, leaves: list[Any], tree: Any = None) -> None:
        self.leaves, self.tree = leaves, tree

    @property
    def variables(self) -> list[Variable]:
        """The weights among the leaves."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Variable)]

    def filled(self, supply: Any) -> Any:
        """The structure with arrays in place of weights."""
        if self.tree is None:
            return None
        leaves = [next(supply) if isinstance(leaf, Variable) else leaf for leaf in self.leaves]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _in_32_bits(value: Any) -> Any:
    """An array as JAX without its 64-bit types has it."""
    with jax.enable_x64(False):
        narrow = jax.dtypes.canonicalize_dtype(value.dtype)
    return value if narrow == value.dtype else value.astype(narrow)


def _paths(structure: Any) -> list[str]:
    """Where the leaves of a pytree are."""
    flat, _ = jax.tree_util.tree_flatten_with_path(
        structure, is_leaf=lambda leaf: isinstance(leaf, Variable)
    )
    return [jax.tree_util.keystr(path) for path, _ in flat]


def _parameters(function: Any, what: str, known: tuple[str, ...]) -> list[str]:
    """Which arguments a function takes, of those it may take; `inputs` is needed."""
    if not callable(function):
        raise ValueError(
            f"`{what}` must be a function, got {function!r}. A JaxLayer is read from a file where its functions are "
            "registered (tf.keras.saving.register_keras_serializable); otherwise save its weights."
        )
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names += [n for n in known if n not in names]
    unknown = [
        p.name
        for p in parameters
        if p.name not in known
        and p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if "inputs" not in names:
        raise ValueError(f"`{what}` must take the argument `inputs`, and takes {names}.")
    if unknown:
        raise ValueError(
            f"`{what}` takes the argument `{unknown[0]}`, which it is not given: the arguments may be {list(known)}."
        )
    return [n for n in names if n in known]


def _name(key: Any) -> str:
    """A key of a path in a pytree as text."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


class FlaxLayer(JaxLayer):
    """A layer of a Flax module: `flax.linen.Module`, or `flax.nnx.Module` with its parameters.

    Args:
      module: the module.
      method: which method computes: a name, a method, or a function (module, inputs, training); default `__call__`.
        It may take `training`; a module of `nnx` is set to train or to evaluate by itself.
      variables: of a module of `linen`, what its `init` returned; default is to call that when the layer is built.
      **kwargs: arguments of `JaxLayer`, such as `seed`.

    Input shape:
      What the module takes.

    Output shape:
      What the module gives.

    Raises:
      ImportError: when flax is not installed.
      TypeError: when it is no module of Flax.

    Example:
      >>> import flax.linen, meshflow as tf  # doctest: +SKIP
      >>> layer = tf.keras.layers.FlaxLayer(flax.linen.Dense(3))  # doctest: +SKIP
      >>> layer(tf.ones([2, 4])).shape  # doctest: +SKIP
      TensorShape([2, 3])
    """

    def __init__(
        self, module: Any, method: Any = None, variables: Any = None, **kwargs: Any
    ) -> None:
        flax = load("flax", "flax", "FlaxLayer needs the package flax")
        nnx = load("flax.nnx", "flax", "FlaxLayer needs the package flax")
        linen = load("flax.linen", "flax", "FlaxLayer needs the package flax")
        if isinstance(module, nnx.Module):
            self._init_nnx(nnx, module, method, **kwargs)
        elif isinstance(module, linen.Module):
            self._init_linen(flax, module, method, variables, **kwargs)
        else:
            raise TypeError(
                f"FlaxLayer takes a flax.linen.Module or a flax.nnx.Module, got {type(module).__name__}."
            )
        self.module, self.method = module, method

    def _init_nnx(self, nnx: Any, module: Any, given: Any, **kwargs: Any) -> None:
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        method, takes_training = _method_of(given, type(module))

        def call(params: Any, state: Any, inputs: Any, training: bool) -> Any:
            made = nnx.merge(graph, params, state)
            made.train() if training else made.eval()
            outputs = (
                method(made, inputs, training=training) if takes_training else method(made, inputs)
            )
            return outputs, nnx.split(made, nnx.Param, ...)[2]

        super().__init__(call, params=params, state=rest, **kwargs)

    def _init_linen(
        self, flax: Any, module: Any, method: Any, variables: Any, **kwargs: Any
    ) -> None:
        _, takes_training = _method_of(method, type(module))
        mutable = flax.core.DenyList(["params"])

        def call(params: Any, state: Any, rng: Any, inputs: Any, training: bool) -> Any:
            more = {"training": training} if takes_training else {}
            held = {"params": params, **(state or {})}
            outputs, new = module.apply(
                held, inputs, rngs=_rngs(rng), method=method, mutable=mutable, **more
            )
            return outputs, {name: new[name] for name in (state or {})}

        def init(rng: Any, inputs: Any, training: bool) -> Any:
            more = {"training": training} if takes_training else {}
            made = dict(module.init({"params": rng, **_rngs(rng)}, inputs, method=method, **more))
            return made.pop("params", {}), made

        given: dict[str, Any] = {}
        if variables is not None:
            rest = dict(variables)
            given = {"params": rest.pop("params", {}), "state": rest}
        super().__init__(call, init, **given, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The configuration, in which the module is described by its own `get_config`.

        Raises:
          NotImplementedError: for a module that has none.
        """
        if not hasattr(self.module, "get_config"):
            raise NotImplementedError(
                f"{self.name}: {type(self.module).__name__} has no `get_config`, so the layer cannot be written to a "
                "configuration. Give the module `get_config` and `from_config` and register its class, or save the "
                "weights (`save_weights`) and make the layer again in code."
            )
        bound = getattr(self.method, "__self__", None) is self.module
        made = {"call_fn", "init_fn"}
        return {
            **{key: value for key, value in super().get_config().items() if key not in made},
            "module": serialization.serialize_keras_object(self.module),
            "method": self.method.__name__ if bound else self.method,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer with a configuration.

        Raises:
          ValueError: for a module whose class is neither registered nor in `custom_objects`.
        """
        given = {
            key: serialization.deserialize_keras_object(config[key], custom_objects)
            for key in ("module", "method")
            if isinstance(config[key], dict)
        }
        return cls(**{**config, **given})


def _method_of(method: Any, kind: type) -> tuple[Callable[..., Any], bool]:
    """A method as a function of the module, and whether it takes `training`."""
    found = (
        kind.__call__
        if method is None
        else getattr(kind, method)
        if isinstance(method, str)
        else method
    )
    return found, "training" in inspect.signature(found).parameters


def _rngs(rng: Any) -> dict[str, Any]:
    """Keys for what Flax's modules draw."""
    return {"dropout": rng, "params": jax.random.fold_in(rng, 1)}
