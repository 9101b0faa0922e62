"""`tf.keras.applications.resnet`: ResNet."""

from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.residual import ResNet50, ResNet101, ResNet152

__all__ = ["ResNet50", "ResNet101", "ResNet152", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")
