"""`tf.keras.utils.experimental`."""

from meshflow.keras.engine.training.dataset_creator import DatasetCreator

__all__ = ["DatasetCreator"]
