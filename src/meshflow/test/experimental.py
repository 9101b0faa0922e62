"""`tf.test.experimental`: synchronization of devices."""

from meshflow.test.benchmark import sync_devices

__all__ = ["sync_devices"]
