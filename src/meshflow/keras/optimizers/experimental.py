"""`tf.keras.optimizers.experimental`: another name of the optimizers since TensorFlow 2.11."""

from __future__ import annotations

from meshflow.keras.optimizers.adafactor import Adafactor
from meshflow.keras.optimizers.adam import Adam, Adamax, AdamW, Lion, Nadam
from meshflow.keras.optimizers.adaptive import Adadelta, Adagrad, RMSprop
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.ftrl import Ftrl
from meshflow.keras.optimizers.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "Optimizer",
    "RMSprop",
]
