"""`tf.keras.applications`: networks for images, and the weights that others trained."""

from meshflow.keras.applications import (
    densenet,
    efficientnet,
    imagenet_utils,
    inception_v3,
    mobilenet,
    mobilenet_v2,
    resnet,
    resnet50,
    resnet_v2,
    vgg16,
    vgg19,
    xception,
)
from meshflow.keras.applications.densenet import DenseNet121, DenseNet169, DenseNet201
from meshflow.keras.applications.efficientnet import (
    EfficientNetB0,
    EfficientNetB1,
    EfficientNetB2,
    EfficientNetB3,
    EfficientNetB4,
    EfficientNetB5,
    EfficientNetB6,
    EfficientNetB7,
)
from meshflow.keras.applications.inception_v3 import InceptionV3
from meshflow.keras.applications.mobilenet import MobileNet
from meshflow.keras.applications.mobilenet_v2 import MobileNetV2
from meshflow.keras.applications.residual import (
    ResNet50,
    ResNet50V2,
    ResNet101,
    ResNet101V2,
    ResNet152,
    ResNet152V2,
)
from meshflow.keras.applications.vgg import VGG16, VGG19
from meshflow.keras.applications.xception import Xception

__all__ = [
    "VGG16",
    "VGG19",
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    "EfficientNetB0",
    "EfficientNetB1",
    "EfficientNetB2",
    "EfficientNetB3",
    "EfficientNetB4",
    "EfficientNetB5",
    "EfficientNetB6",
    "EfficientNetB7",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "ResNet50",
    "ResNet50V2",
    "ResNet101",
    "ResNet101V2",
    "ResNet152",
    "ResNet152V2",
    "Xception",
    "densenet",
    "efficientnet",
    "imagenet_utils",
    "inception_v3",
    "mobilenet",
    "mobilenet_v2",
    "resnet",
    "resnet50",
    "resnet_v2",
    "vgg16",
    "vgg19",
    "xception",
]
