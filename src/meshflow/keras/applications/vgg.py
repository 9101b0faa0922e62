"""VGG (arXiv:1409.1556): blocks of 3x3 convolutions."""

from __future__ import annotations

from meshflow.keras.applications.common import (
    URL,
    ImageSizes,
    build_model,
    create_input,
    pool_features,
)
from meshflow.keras.applications.constructors import (
    NetworkArguments,
    NetworkDescription,
    Signatures,
    create_constructor_factory,
)
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers import Conv2D, Dense, Flatten
from meshflow.keras.layers.pooling import MaxPooling2D

_SIZES = ImageSizes(224, 32)
_DEPTHS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


def _build_vgg(layers: int, args: NetworkArguments) -> Model:
    name, depths = f"vgg{layers}", _DEPTHS[layers]
    inputs = create_input(_SIZES, args)
    x = inputs
    for block, (depth, filters) in enumerate(zip(depths, _FILTERS, strict=True), 1):
        for i in range(1, depth + 1):
            label = f"block{block}_conv{i}"
            x = Conv2D(filters, 3, padding="same", activation="relu", name=label)(x)
        x = MaxPooling2D(2, strides=2, name=f"block{block}_pool")(x)
    if args.include_top:
        x = Flatten(name="flatten")(x)
        x = Dense(4096, activation="relu", name="fc1")(x)
        x = Dense(4096, activation="relu", name="fc2")(x)
        x = Dense(args.classes, activation=args.classifier_activation, name="predictions")(x)
    else:
        x = pool_features(x, args.pooling)
    ending = "" if args.include_top else "_notop"
    url = f"{URL}{name}/{name}_weights_tf_dim_ordering_tf_kernels{ending}.h5"
    return build_model(name, inputs, x, args, url)


def _describe(layers: int) -> NetworkDescription:
    return NetworkDescription(
        f"VGG{layers}", f"Create a VGG network with {layers} weighted layers.", 224
    )


_create = create_constructor_factory(Signatures.make_network, _build_vgg, _describe)


VGG16, VGG19 = _create(16), _create(19)
