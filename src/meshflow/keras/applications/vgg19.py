"""`tf.keras.applications.vgg19`: VGG with 19 layers."""

from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.vgg import VGG19

__all__ = ["VGG19", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")
