"""`tf.config`: devices and global settings."""

from meshflow.core.config import config_experimental as experimental
from meshflow.core.config import config_optimizer as optimizer
from meshflow.core.config import config_threading as threading
from meshflow.core.config.config import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
    experimental_functions_run_eagerly,
    experimental_run_functions_eagerly,
    functions_run_eagerly,
    get_logical_device_configuration,
    get_soft_device_placement,
    get_visible_devices,
    list_logical_devices,
    list_physical_devices,
    run_functions_eagerly,
    set_logical_device_configuration,
    set_soft_device_placement,
    set_visible_devices,
)
from meshflow.core.config.config_clusters import (
    experimental_connect_to_cluster,
    experimental_connect_to_host,
)

# `__path__` makes the namespaces importable by their paths.
__path__: list[str] = []

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "experimental_connect_to_host",
    "experimental_functions_run_eagerly",
    "experimental_run_functions_eagerly",
    "functions_run_eagerly",
    "get_logical_device_configuration",
    "get_soft_device_placement",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "optimizer",
    "run_functions_eagerly",
    "set_logical_device_configuration",
    "set_soft_device_placement",
    "set_visible_devices",
    "threading",
]
