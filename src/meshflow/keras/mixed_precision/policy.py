"""Dtype policies: the dtypes of the computations and variables of a layer."""

from __future__ import annotations

from meshflow.core.config import config_optimizer
from meshflow.core.values import dtypes
from meshflow.distribute.strategy import get_strategy
from meshflow.environment.types import Config
from meshflow.keras import registry, serialization, settings
from meshflow.keras.mixed_precision import float8
from meshflow.keras.registry import CustomObjects

_MIXED_COMPUTE_DTYPES = {
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
    # Only products use 8 bits. Other operations need a higher precision, and bfloat16 needs no loss
    # scale.
    "mixed_float8": "bfloat16",
}
_REMOVED_POLICIES = {
    "infer_float32_vars": "'mixed_float16' or 'mixed_bfloat16'",
    "infer_with_float32_vars": "'mixed_float16' or 'mixed_bfloat16'",
    "float16_with_float32_vars": "'mixed_float16'",
    "bfloat16_with_float32_vars": "'mixed_bfloat16'",
}
_AMAX_HISTORY_LENGTH = 1024


class Policy:
    """Dtypes of the computations and variables of a layer.

    Args:
      name: Dtype name for both, `'mixed_float16'` or `'mixed_bfloat16'` (16-bit computations,
        float32 variables), or `'mixed_float8'` (as `'mixed_bfloat16'`, with 8-bit operands of
        products and convolutions).
      amax_history_length: Number of past steps from which scales are computed, for
        `'mixed_float8'`.

    Attributes:
      name: Name of the policy.
      compute_dtype: Dtype name of inputs and computations.
      variable_dtype: Dtype name of variables.
      amax_history_length: Number of past steps; None for other policies.

    Raises:
      TypeError: If the name is not a string.
      ValueError: If the name is unknown; the message lists the known ones.
      UnimplementedError: For `'mixed_float8'` on a device without such products.

    Example:
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
        self._compute_dtype, self._variable_dtype = _parse_name(name)
        if self.uses_float8:
            float8.check_available()
            if amax_history_length is None:
                amax_history_length = _AMAX_HISTORY_LENGTH
        if amax_history_length is not None and (
            not self.uses_float8
            or not isinstance(amax_history_length, int)
            or amax_history_length < 1
        ):
            raise ValueError(
                "amax_history_length must be a positive integer, and applies to the policy 'mixed_float8' only. "
                f"Got {amax_history_length!r} for {name!r}."
            )
        self._amax_history_length = amax_history_length

    @property
    def name(self) -> str:
        """Return the name of the policy."""
        return self._name

    @property
    def compute_dtype(self) -> str | None:
        """Return the dtype name of computations."""
        return self._compute_dtype

    @property
    def variable_dtype(self) -> str | None:
        """Return the dtype name of variables."""
        return self._variable_dtype

    @property
    def uses_float8(self) -> bool:
        """Check whether operands of products are rounded to 8 bits."""
        return self._name == "mixed_float8"

    @property
    def amax_history_length(self) -> int | None:
        """Return the number of past steps from which the scales of 8-bit operands are computed."""
        return self._amax_history_length

    def get_config(self) -> Config:
        """Return the configuration, with 'amax_history_length' only if it is not 1024."""
        if self._amax_history_length in (None, _AMAX_HISTORY_LENGTH):
            return {"name": self._name}
        return {"name": self._name, "amax_history_length": self._amax_history_length}

    @classmethod
    def from_config(cls, config: Config, custom_objects: CustomObjects = None) -> Policy:
        """Create a policy from its configuration; a former `loss_scale` entry is ignored."""
        del custom_objects
        options = {k: v for k, v in config.items() if k == "amax_history_length"}
        return cls(config["name"], **options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return False
        same_length = self._amax_history_length == other.amax_history_length
        return same_length and self._name == other.name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f'<Policy "{self._name}">'


def _parse_name(name: str) -> tuple[str | None, str | None]:
    if name.endswith("_float32_vars"):
        replacement = _REMOVED_POLICIES.get(name)
        advice = f" Please use the {replacement} policy instead." if replacement else ""
        raise ValueError(
            f"Policies ending in '_float32_vars' have been removed from TensorFlow.{advice} Got policy "
            f"name: '{name}'"
        )
    if name in _MIXED_COMPUTE_DTYPES:
        return _MIXED_COMPUTE_DTYPES[name], "float32"
    if name == "_infer":
        return None, None
    try:
        dtype = dtypes.as_dtype(name).name
    except TypeError:
        floats = [d.name for d in dtypes.ALL_DTYPES if d.is_floating]
        raise registry.UnknownNameError(
            f"Cannot convert value {name} to a mixed precision Policy. Valid policies include "
            f"{sorted(_MIXED_COMPUTE_DTYPES)} and the name of any dtype, such as {floats}."
        ) from None
    return dtype, dtype


_global_policy: Policy | None = None


def global_policy() -> Policy:
    """Return the policy of layers without an explicit dtype; `floatx()` by default.

    Example:
      >>> tf.keras.mixed_precision.global_policy()
      <Policy "float32">
    """
    return _global_policy if _global_policy is not None else Policy(settings.floatx())


def set_global_policy(policy: Policy | str | None) -> None:
    """Set the policy of layers that are created from now on.

    Args:
      policy: A `Policy`, a name, or None for `floatx()`.

    Raises:
      ValueError: If the policy does not compute in floating point.

    Example:
      >>> tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
      >>> layer = tf.keras.layers.Dense(2)
      >>> layer.compute_dtype, layer.dtype
      ('bfloat16', 'float32')
      >>> tf.keras.mixed_precision.set_global_policy("float32")
    """
    global _global_policy
    if policy is not None and not isinstance(policy, Policy):
        policy = Policy(policy)
    compute = None if policy is None else policy.compute_dtype
    if policy is not None and compute is not None and not dtypes.as_dtype(compute).is_floating:
        raise ValueError(
            "set_global_policy can only be used to set the global policy to floating-point policies, "
            f'such as "float32" and "mixed_float16", but got policy: {policy.name}'
        )
    if (
        policy is not None
        and policy.compute_dtype != policy.variable_dtype
        and is_rewriting_enabled()
    ):
        raise ValueError(
            f'The global dtype policy cannot be set to "{policy.name}", because the mixed precision graph '
            "rewrite has already been enabled. Use one or the other."
        )
    _global_policy = policy


def is_rewriting_enabled() -> bool:
    """Check whether programs are rewritten to mixed precision."""
    options = config_optimizer.get_experimental_options()
    return any(on and name.startswith("auto_mixed_precision") for name, on in options.items())


def dtype_policy() -> Policy:
    """Return the global policy; Keras 3's name of `global_policy`.

    Example:
      >>> tf.keras.mixed_precision.dtype_policy().name
      'float32'
    """
    return global_policy()


def set_dtype_policy(policy: Policy | str | None) -> None:
    """Set the global policy; Keras 3's name of `set_global_policy`.

    Args:
      policy: A `Policy`, a name, or None for `floatx()`.

    Example:
      >>> tf.keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
      >>> tf.keras.layers.Dense(2).compute_dtype
      'bfloat16'
      >>> tf.keras.mixed_precision.set_dtype_policy("float32")
    """
    set_global_policy(policy)


def get(identifier: object) -> Policy:
    """Return the policy for a policy, name, dtype or configuration; the global policy for None."""
    if identifier is None:
        return global_policy()
    if isinstance(identifier, Policy):
        return identifier
    if isinstance(identifier, dict):
        custom_class = registry.get_registered_object(
            identifier.get("registered_name") or identifier.get("class_name", "")
        )
        # Policies of TensorFlow 2.1 to 2.3 are loaded without their loss scale.
        cls = (
            custom_class
            if isinstance(custom_class, type) and issubclass(custom_class, Policy)
            else Policy
        )
        return cls.from_config(identifier.get("config", identifier))
    if isinstance(identifier, str):
        return Policy(identifier)
    return Policy(dtypes.as_dtype(identifier).name)


def check_strategy(policy: Policy) -> None:
    """Refuse float16 layers under strategies that do not scale losses.

    Args:
      policy: Policy of the layer.

    Raises:
      ValueError: For `'mixed_float16'` in the scope of such a strategy.
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


def serialize(policy: Policy) -> str | Config | None:
    """Return a dtype name, None for '_infer', or a configuration, which `get` accepts."""
    if type(policy) is Policy and policy.compute_dtype == policy.variable_dtype:
        return None if policy.compute_dtype is None else policy.name
    return serialization.serialize(policy)


registry.create_registry("dtype policy", "keras.mixed_precision", {"Policy": Policy})
