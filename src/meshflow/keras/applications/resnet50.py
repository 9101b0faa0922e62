"""`tf.keras.applications.resnet50`: ResNet with 50 layers."""

from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.residual import ResNet50

__all__ = ["ResNet50", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")
