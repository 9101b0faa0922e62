"""`tf.keras.utils.experimental`: the former module of `DatasetCreator`."""

from meshflow.keras.engine.training.dataset_creator import DatasetCreator

__all__ = ["DatasetCreator"]
