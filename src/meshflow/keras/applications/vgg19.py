"""`tf.keras.applications.vgg19`: VGG with 19 layers."""

from meshflow.keras.applications.imagenet_utils import create_preprocess_input, decode_predictions
from meshflow.keras.applications.vgg import VGG19

__all__ = ["VGG19", "decode_predictions", "preprocess_input"]

preprocess_input = create_preprocess_input("caffe")
