"""`tf.keras.dtensor.experimental.optimizers`: the ordinary optimizers, whose slots follow their variables' layouts."""

from meshflow.keras.optimizers.adam import Adam, AdamW
from meshflow.keras.optimizers.adaptive import Adadelta, Adagrad, RMSprop
from meshflow.keras.optimizers.sgd import SGD

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop"]
