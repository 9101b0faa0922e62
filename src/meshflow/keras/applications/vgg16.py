"""`tf.keras.applications.vgg16`: VGG with 16 layers."""

from meshflow.keras.applications.imagenet_utils import decode_predictions, preprocessing
from meshflow.keras.applications.vgg import VGG16

__all__ = ["VGG16", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")
