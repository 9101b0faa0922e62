"""Constructors of networks from a shared signature, a builder and a description.

A builder takes the bound arguments as `NetworkArguments`. The constructor checks, binds and
documents them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import StrPath
from meshflow.keras.engine.models.model import Model

InputShape: TypeAlias = Sequence[int | None] | None
ActivationLike: TypeAlias = str | Callable[..., TensorLike] | None

P = ParamSpec("P")
Variant = TypeVar("Variant")


class NetworkArguments(SimpleNamespace):
    """Arguments of a constructor by name; a network only has those of its signature."""

    include_top: bool
    weights: StrPath | None
    input_tensor: TensorLike
    input_shape: InputShape
    pooling: str | None
    classes: int
    classifier_activation: ActivationLike
    include_preprocessing: bool
    model_name: str


class Signatures(Protocol):
    """Signatures that constructors of several network families share."""

    @staticmethod
    def make_network(
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        input_shape: InputShape = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
    ) -> Model:
        """Create a network without further options."""
        ...

    @staticmethod
    def make_scaling_network(
        include_top: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        input_shape: InputShape = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        """Create a network that can scale the images itself."""
        ...

    @staticmethod
    def make_named_network(
        model_name: str = ...,
        include_top: bool = True,
        include_preprocessing: bool = True,
        weights: StrPath | None = "imagenet",
        input_tensor: TensorLike = None,
        input_shape: InputShape = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: ActivationLike = "softmax",
    ) -> Model:
        """Create a network with a name that prefixes the names of its layers."""
        ...


_ARGUMENTS = {
    "alpha": "Factor of the numbers of channels.",
    "classes": "Number of classes of the classifier.",
    "classifier_activation": "Activation of the classifier; None for logits.",
    "include_preprocessing": "Whether the model scales the images.",
    "include_top": "Whether the model includes the classifier.",
    "input_shape": "(height, width, channels); ({size}, {size}, 3) by default.",
    "input_tensor": "Symbolic tensor that replaces the `Input`.",
    "model_name": "Name of the model, and prefix of the names of its layers.",
    "pooling": "Global pooling of the features without a classifier: 'avg', 'max' or None.",
    "weights": "None, 'imagenet' (downloaded once), or the path of a weights file.",
}


class NetworkDescription(NamedTuple):
    """Name and documentation of a constructor.

    Attributes:
      name: Name of the constructor.
      summary: First line of its docstring.
      size: Default height and width of images.
      model_name: Default of the argument `model_name`.
      arguments: Descriptions of arguments that are specific to this network.
    """

    name: str
    summary: str
    size: int
    model_name: str | None = None
    arguments: Mapping[str, str] = MappingProxyType({})


def create_constructor(
    like: Callable[P, Model], build: Callable[[Any], Model], description: NetworkDescription
) -> Callable[P, Model]:
    """Create the public function that constructs a network.

    Args:
      like: Function with the signature of the constructor.
      build: Function from `NetworkArguments` to the model.
      description: Name and documentation.
    """
    signature = inspect.signature(like)
    parameters = dict(signature.parameters)
    if description.model_name is not None:
        parameters["model_name"] = parameters["model_name"].replace(default=description.model_name)
        signature = signature.replace(parameters=list(parameters.values()))

    def make(*args: P.args, **kwargs: P.kwargs) -> Model:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(parameters)
            raise TypeError(f"{description.name}: {error}. Its arguments are {known}.") from None
        bound.apply_defaults()
        return build(NetworkArguments(**bound.arguments))

    make.__name__ = make.__qualname__ = description.name
    make.__module__ = getattr(build, "func", build).__module__
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = _format_docstring(description, parameters)
    return make


def create_constructor_factory(
    like: Callable[P, Model],
    build: Callable[[Variant, Any], Model],
    describe: Callable[[Variant], NetworkDescription],
) -> Callable[[Variant], Callable[P, Model]]:
    """Return a function that creates constructors of networks with one builder.

    Args:
      like: Function with the signature of the constructors.
      build: Function from a variant and `NetworkArguments` to the model.
      describe: Function from a variant to the name and documentation of its constructor.
    """
    return lambda kind: create_constructor(like, functools.partial(build, kind), describe(kind))


def _format_docstring(description: NetworkDescription, names: Iterable[str]) -> str:
    meanings = {**_ARGUMENTS, **description.arguments}
    size = description.size
    lines = "".join(f"      {name}: {meanings[name].format(size=size)}\n" for name in names)
    return f"""{description.summary}

    Args:
{lines}
    Raises:
      ValueError: If shapes, weights or classes are inconsistent.
    """
