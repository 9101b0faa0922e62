"""`tf.keras.applications.resnet`: ResNet."""

from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.applications.residual import ResNet50, ResNet101, ResNet152

__all__ = ["ResNet50", "ResNet101", "ResNet152", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("caffe")
