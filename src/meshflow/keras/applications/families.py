"""How constructors of networks are made: each signature stands once, and one maker does the rest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from meshflow.keras.engine.models.model import Model

__all__ = ["Described", "Signatures", "Wanted", "constructor", "family"]

P = ParamSpec("P")
Kind = TypeVar("Kind")


class Wanted(SimpleNamespace):
    """The arguments of a constructor by name; a network has those of its signature."""

    include_top: bool
    weights: Any
    input_tensor: Any
    input_shape: Any
    pooling: str | None
    classes: int
    classifier_activation: Any
    include_preprocessing: bool
    model_name: str


class Signatures(Protocol):
    """The signatures that constructors of several families have."""

    @staticmethod
    def plain(
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        """Of most."""
        ...

    @staticmethod
    def scaling(
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        """Of networks that scale images themselves."""
        ...

    @staticmethod
    def named(
        model_name: str = ...,
        include_top: bool = True,
        include_preprocessing: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        """Of networks that give their name to their layers."""
        ...


_ARGUMENTS = {
    "alpha": "factor of the numbers of channels.",
    "classes": "how many classes the classifier has.",
    "classifier_activation": "the classifier's activation; None for logits.",
    "include_preprocessing": "whether images are scaled in the model.",
    "include_top": "whether the classifier is part of the model.",
    "input_shape": "(height, width, channels); default ({size}, {size}, 3).",
    "input_tensor": "a symbolic tensor to begin with, instead of an `Input`.",
    "model_name": "name of the model, with which names of layers begin.",
    "pooling": "without a classifier, 'avg' or 'max' pools the features of all places.",
    "weights": "None, 'imagenet' (downloaded once), or the path of a file of weights.",
}


class Described(NamedTuple):
    """What a constructor says of itself.

    Attributes:
      name: its name.
      what: the first line of its description.
      size: height and width of images by default.
      model_name: the default of the argument of this name.
      arguments: what arguments mean of which only this network knows, or that mean something else.
    """

    name: str
    what: str
    size: int
    model_name: str | None = None
    arguments: Mapping[str, str] = MappingProxyType({})


def constructor(
    like: Callable[P, Model], build: Callable[[Any], Model], described: Described
) -> Callable[P, Model]:
    """The public function that makes a network.

    Args:
      like: has its signature.
      build: makes the network of what is `Wanted`.
      described: its name and documentation.
    """
    signature = inspect.signature(like)
    parameters = dict(signature.parameters)
    if described.model_name is not None:
        usual = parameters["model_name"].replace(default=described.model_name)
        parameters["model_name"] = usual
        signature = signature.replace(parameters=list(parameters.values()))

    def make(*args: P.args, **kwargs: P.kwargs) -> Model:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(parameters)
            raise TypeError(f"{described.name}: {error}. Its arguments are {known}.") from None
        given.apply_defaults()
        return build(Wanted(**given.arguments))

    make.__name__ = make.__qualname__ = described.name
    make.__module__ = getattr(build, "func", build).__module__
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = _documentation(described, parameters)
    return make


def family(
    like: Callable[P, Model],
    build: Callable[[Kind, Any], Model],
    describe: Callable[[Kind], Described],
) -> Callable[[Kind], Callable[P, Model]]:
    """The constructors of networks that differ in their kind only: a function from the kind to one of them.

    Args:
      like: has their signature.
      build: makes a network of its kind and what is `Wanted`.
      describe: the name and documentation of a kind's constructor.
    """
    return lambda kind: constructor(like, functools.partial(build, kind), describe(kind))


def _documentation(described: Described, names: Iterable[str]) -> str:
    meanings = {**_ARGUMENTS, **described.arguments}
    size = described.size
    lines = "".join(f"      {name}: {meanings[name].format(size=size)}\n" for name in names)
    return f"""{described.what}

    Args:
{lines}
    Raises:
      ValueError: for shapes, weights or classes that do not go together.
    """
