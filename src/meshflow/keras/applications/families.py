"""How constructors of a family, which differ in numbers only, are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshflow.keras.engine.models.model import Model

__all__ = [
    "NamedNetwork",
    "Network",
    "PreprocessingNetwork",
    "arguments_of",
    "constructor",
    "named_constructor",
    "preprocessing_constructor",
]


class Network(Protocol):
    """Makes one network of a family; see any of them for the arguments."""

    def __call__(
        self,
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model: ...


class PreprocessingNetwork(Protocol):
    """Makes one network of a family that scales images itself."""

    def __call__(
        self,
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
        include_preprocessing: bool = True,
    ) -> Model: ...


_DOC = """{what}

    Args:
      include_top: whether the classifier is part of the model.
      weights: None, 'imagenet' (downloaded once), or the path of a file of weights.
      input_tensor: a symbolic tensor to begin with, instead of an `Input`.
      input_shape: (height, width, channels); default ({size}, {size}, 3).
      pooling: without a classifier, 'avg' or 'max' pools the features of all places.
      classes: how many classes the classifier has.
      classifier_activation: the classifier's activation; None for logits.

    Raises:
      ValueError: for shapes, weights or classes that do not go together.
    """


def arguments_of(size: int, after: str, without: str = "") -> str:
    """What documents the common arguments that come after one, and the errors.

    Args:
      size: height and width of images by default.
      after: the argument.
      without: an argument that is left out.
    """
    lines = _DOC.format(what="", size=size).split("\n")
    begin = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{after}:"))
    kept = [n for n in lines[begin + 1 :] if not (without and n.strip().startswith(f"{without}:"))]
    return "\n".join(kept)


def constructor(name: str, what: str, size: int, build: Callable[..., Any]) -> Network:
    """The public function that makes a network.

    Args:
      name: its name.
      what: the first line of its description.
      size: height and width of images by default.
      build: makes the network; called with the same arguments.
    """

    def make(
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        return build(
            include_top,
            weights,
            input_tensor,
            input_shape,
            pooling,
            classes,
            classifier_activation,
        )

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _DOC.format(what=what, size=size)
    return make


def preprocessing_constructor(
    name: str, what: str, size: int, build: Callable[..., Any]
) -> PreprocessingNetwork:
    """As `constructor`, of a network that scales images itself unless told otherwise.

    Args:
      name: its name.
      what: the first line of its description.
      size: height and width of images by default.
      build: makes the network; called with the same arguments.
    """

    def make(
        include_top: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
        include_preprocessing: bool = True,
    ) -> Model:
        return build(
            include_top,
            weights,
            input_tensor,
            input_shape,
            pooling,
            classes,
            classifier_activation,
            include_preprocessing,
        )

    make.__name__ = make.__qualname__ = name
    scaling = "include_preprocessing: whether images are scaled in the model.\n\n    Raises:"
    make.__doc__ = _DOC.format(what=what, size=size).replace("\n    Raises:", f"      {scaling}")
    return make


class NamedNetwork(Protocol):
    """Makes one network of a family whose layers' names begin with the model's."""

    def __call__(
        self,
        model_name: str = ...,
        include_top: bool = True,
        include_preprocessing: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model: ...


_NAMED_DOC = """{what}

    Args:
      model_name: name of the model, with which names of layers begin.
      include_top: whether the classifier is part of the model.
      include_preprocessing: whether images are scaled in the model.
{rest}"""


def named_constructor(name: str, what: str, usual: str, build: Callable[..., Any]) -> NamedNetwork:
    """As `constructor`, of a network for images of 224x224 that scales them itself, and gives its name to its layers.

    Args:
      name: the function's name.
      what: the first line of its description.
      usual: the default of `model_name`.
      build: makes the network; called with the same arguments.
    """

    def make(
        model_name: str = usual,
        include_top: bool = True,
        include_preprocessing: bool = True,
        weights: Any = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: Any = "softmax",
    ) -> Model:
        return build(
            model_name,
            include_top,
            include_preprocessing,
            weights,
            input_tensor,
            input_shape,
            pooling,
            classes,
            classifier_activation,
        )

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _NAMED_DOC.format(what=what, rest=arguments_of(224, after="include_top"))
    return make
