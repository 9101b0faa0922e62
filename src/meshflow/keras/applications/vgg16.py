"""`tf.keras.applications.vgg16`: VGG with 16 layers."""

from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.applications.vgg import VGG16

__all__ = ["VGG16", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("caffe")
