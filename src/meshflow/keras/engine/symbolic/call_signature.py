"""Signatures of the `call` methods of layers, and the stack of calls in progress."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

from meshflow.core.runtime.context import ThreadState


class CallState(ThreadState):
    """Layer calls in progress in this thread, outermost first, and their `training` values."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.training: list[Any] = []


call_state = CallState()


class CallSignature:
    """Parameters of the `call` method of a layer class."""

    def __init__(self, cls: type) -> None:
        parameters = list(inspect.signature(cls.call).parameters.values())[1:]  # type: ignore[attr-defined]
        self.arg_names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        keywords = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
        self.first_name = self.arg_names[0] if self.arg_names else None
        self.expects_training_arg = "training" in keywords
        self.accepts_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.expects_mask_arg = "mask" in keywords
        default = keywords.get("training")
        # A required `training` argument gets None if no mode is set.
        self.requires_training = default is inspect.Parameter.empty
        self.default_training = None if self.requires_training else default

    def split_inputs(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Split the arguments of a call into the first one and the others."""
        kwargs = dict(kwargs)
        if args:
            return args[0], args[1:], kwargs
        if self.first_name in kwargs:
            return kwargs.pop(self.first_name), (), kwargs
        if self.first_name is None or "inputs" not in kwargs:
            raise ValueError(
                f"The first argument to `Layer.call` must always be passed (layer {layer.name!r}, argument "
                f"{self.first_name!r})."
            )
        return kwargs.pop("inputs"), (), kwargs

    def is_positional(self, name: str, args: tuple[Any, ...]) -> bool:
        """Check whether an argument was passed by position; `args` lacks the first argument."""
        return name in self.arg_names and self.arg_names.index(name) - 1 < len(args)

    def is_passed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Check whether an argument was passed."""
        return name in kwargs or self.is_positional(name, args)

    def get_value(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value of an argument that was passed."""
        return kwargs[name] if name in kwargs else args[self.arg_names.index(name) - 1]


# Weak keys: classes may be garbage-collected with the models that define them.
_signatures: weakref.WeakKeyDictionary[type, CallSignature] = weakref.WeakKeyDictionary()


def get_call_signature(cls: type) -> CallSignature:
    """Return the cached signature of the `call` method of a class."""
    signature = _signatures.get(cls)
    if signature is None:
        signature = _signatures[cls] = CallSignature(cls)
    return signature
