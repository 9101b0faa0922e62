"""Dtype policies: which dtype a layer computes in and which its variables have."""

from __future__ import annotations

from typing import Any

from meshflow.core.config import config_optimizer
from meshflow.core.values import dtypes
from meshflow.distribute.strategy import get_strategy
from meshflow.keras import registry, serialization, settings
from meshflow.keras.mixed_precision import float8

_MIXED = {
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
    # What is not a product needs more digits than 8 bits have, and bfloat16 needs no loss scale.
    "mixed_float8": "bfloat16",
}
_REMOVED = {
    "infer_float32_vars": "'mixed_float16' or 'mixed_bfloat16'",
    "infer_with_float32_vars": "'mixed_float16' or 'mixed_bfloat16'",
    "float16_with_float32_vars": "'mixed_float16'",
    "bfloat16_with_float32_vars": "'mixed_bfloat16'",
}
_AMAX_HISTORY_LENGTH = 1024


class Policy:
    """The pair of dtypes that a layer uses.

    Args:
      name: a dtype name (compute and variables alike), `'mixed_float16'` or `'mixed_bfloat16'`
        (computation in 16 bits, variables in float32), or `'mixed_float8'` (as `'mixed_bfloat16'`,
        with 8 bits for the operands of products and convolutions).
      amax_history_length: for `'mixed_float8'`, from how many past steps scales are found.

    Attributes:
      name: the policy's name.
      compute_dtype: dtype name of inputs and computation.
      variable_dtype: dtype name of variables.
      amax_history_length: as given; None for other policies.

    Raises:
      TypeError: when the name is no string.
      ValueError: for an unknown name; the message lists the known ones.
      UnimplementedError: for `'mixed_float8'` on a device without such products.

    Example:
      >>> import meshflow as tf
      >>> policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
      >>> policy.compute_dtype, policy.variable_dtype
      ('bfloat16', 'float32')
    """

    def __init__(self, name: str, amax_history_length: int | None = None) -> None:
        if isinstance(name, dtypes.DType):
            raise TypeError(
                f"'name' must be a string, not a DType. Instead, pass DType.name. Got: {name.name}"
            )
        if not isinstance(name, str):
            raise TypeError(f"'name' must be a string, but got: {name!r}")
        self._name = name
        self._compute_dtype, self._variable_dtype = _parse(name)
        if self.float8:
            float8.check_available()
            if amax_history_length is None:
                amax_history_length = _AMAX_HISTORY_LENGTH
        if amax_history_length is not None and (
            not self.float8 or not isinstance(amax_history_length, int) or amax_history_length < 1
        ):
            raise ValueError(
                "amax_history_length must be a positive integer, and is for the policy 'mixed_float8' only. "
                f"Got {amax_history_length!r} for {name!r}."
            )
        self._amax_history_length = amax_history_length

    @property
    def name(self) -> str:
        """The policy's name."""
        return self._name

    @property
    def compute_dtype(self) -> str | None:
        """Dtype name of computation."""
        return self._compute_dtype

    @property
    def variable_dtype(self) -> str | None:
        """Dtype name of variables."""
        return self._variable_dtype

    @property
    def float8(self) -> bool:
        """Whether operands of products are rounded to 8 bits."""
        return self._name == "mixed_float8"

    @property
    def amax_history_length(self) -> int | None:
        """From how many past steps the scales of 8-bit operands are found."""
        return self._amax_history_length

    def get_config(self) -> dict[str, Any]:
        """The configuration, `{'name': ...}`; also 'amax_history_length' where it is not 1024."""
        if self._amax_history_length in (None, _AMAX_HISTORY_LENGTH):
            return {"name": self._name}
        return {"name": self._name, "amax_history_length": self._amax_history_length}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Policy:
        """The policy with a configuration; an old `loss_scale` entry is dropped."""
        del custom_objects
        own = {k: v for k, v in config.items() if k == "amax_history_length"}
        return cls(config["name"], **own)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return False
        mine, others = self._amax_history_length, other._amax_history_length
        return self._name == other._name and mine == others

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f'<Policy "{self._name}">'


def _parse(name: str) -> tuple[str | None, str | None]:
    if name.endswith("_float32_vars"):
        instead = _REMOVED.get(name)
        advice = f" Please use the {instead} policy instead." if instead else ""
        raise ValueError(
            f"Policies ending in '_float32_vars' have been removed from TensorFlow.{advice} Got policy "
            f"name: '{name}'"
        )
    if name in _MIXED:
        return _MIXED[name], "float32"
    if name == "_infer":
        return None, None
    try:
        found = dtypes.as_dtype(name).name
    except TypeError:
        floats = [d.name for d in dtypes.ALL if d.is_floating]
        raise ValueError(
            f"Cannot convert value {name} to a mixed precision Policy. Valid policies include "
            f"{sorted(_MIXED)} and the name of any dtype, such as {floats}."
        ) from None
    return found, found


_global: Policy | None = None


def global_policy() -> Policy:
    """The policy of layers made without `dtype=`; default `floatx()`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.mixed_precision.global_policy()
      <Policy "float32">
    """
    return _global if _global is not None else Policy(settings.floatx())


def set_global_policy(policy: Any) -> None:
    """Sets the policy of layers made from now on.

    Args:
      policy: a `Policy`, a name, or None for `floatx()`.

    Raises:
      ValueError: for a policy that does not compute in floating point.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
      >>> layer = tf.keras.layers.Dense(2)
      >>> layer.compute_dtype, layer.dtype
      ('bfloat16', 'float32')
      >>> tf.keras.mixed_precision.set_global_policy("float32")
    """
    global _global
    if policy is not None and not isinstance(policy, Policy):
        policy = Policy(policy)
    compute = None if policy is None else policy.compute_dtype
    if compute is not None and not dtypes.as_dtype(compute).is_floating:
        raise ValueError(
            "set_global_policy can only be used to set the global policy to floating-point policies, "
            f'such as "float32" and "mixed_float16", but got policy: {policy.name}'
        )
    if policy is not None and policy.compute_dtype != policy.variable_dtype and rewriting():
        raise ValueError(
            f'The global dtype policy cannot be set to "{policy.name}", because the mixed precision graph '
            "rewrite has already been enabled. Use one or the other."
        )
    _global = policy


def rewriting() -> bool:
    """Whether programs are rewritten to mixed precision."""
    options = config_optimizer.get_experimental_options()
    return any(on and name.startswith("auto_mixed_precision") for name, on in options.items())


def dtype_policy() -> Policy:
    """Keras 3's name of `global_policy`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.mixed_precision.dtype_policy().name
      'float32'
    """
    return global_policy()


def set_dtype_policy(policy: Any) -> None:
    """Keras 3's name of `set_global_policy`.

    Args:
      policy: a `Policy`, a name, or None for `floatx()`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
      >>> tf.keras.layers.Dense(2).compute_dtype
      'bfloat16'
      >>> tf.keras.mixed_precision.set_dtype_policy("float32")
    """
    set_global_policy(policy)


def get(identifier: Any) -> Policy:
    """A policy from a policy, name, dtype, configuration, or None (the global policy)."""
    if identifier is None:
        return global_policy()
    if isinstance(identifier, Policy):
        return identifier
    if isinstance(identifier, dict):
        found = registry.get_registered_object(
            identifier.get("registered_name") or identifier.get("class_name", "")
        )
        # Those of TensorFlow 2.1-2.3 come back as policies without a loss scale.
        cls = found if isinstance(found, type) and issubclass(found, Policy) else Policy
        return cls.from_config(identifier.get("config", identifier))
    if isinstance(identifier, str):
        return Policy(identifier)
    return Policy(dtypes.as_dtype(identifier).name)


def check_strategy(policy: Policy) -> None:
    """Refuses layers in float16 under strategies whose losses are not scaled.

    Args:
      policy: the layer's policy.

    Raises:
      ValueError: for `'mixed_float16'` in the scope of such a strategy.
    """
    if policy.name != "mixed_float16":
        return
    strategy = get_strategy()
    if strategy.no_loss_scaling is not None:
        raise ValueError(
            f"Mixed precision is not supported with the tf.distribute.Strategy: {type(strategy).__name__}. Either "
            'stop using mixed precision by removing the use of the "mixed_float16" policy or use a different '
            "Strategy, e.g. a MirroredStrategy."
        )


def serialize(policy: Policy) -> Any:
    """What `get` makes the policy of: the name of a dtype, None for '_infer', or a configuration."""
    if type(policy) is Policy and policy.compute_dtype == policy.variable_dtype:
        return None if policy.compute_dtype is None else policy.name
    return serialization.serialize(policy)


registry.family("dtype policy", "keras.mixed_precision", {"Policy": Policy})
