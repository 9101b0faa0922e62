"""Settings of a GPU's memory, for a GPU that is pretended: the variables that XLA would read."""

import functools
import os

import pytest

import meshflow as tf
from meshflow.core.config import config
from meshflow.core.runtime import gpu_memory
from meshflow.environment import jax_internals

NAMES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)


class _Gpu:
    """Describe a device with 80 GB, of which XLA allocates three quarters."""

    def memory_stats(self):
        return {"bytes_limit": int(0.75 * 80 * (1 << 30))}


@pytest.fixture
def gpu(monkeypatch):
    """A physical GPU that was listed and has not been used."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu_memory, "restart_backend", lambda: True)
    monkeypatch.setattr(gpu_memory.jax, "local_devices", lambda: [_Gpu()])
    monkeypatch.setattr(config.ConfigState, "logical_gpus", {})
    monkeypatch.setattr("meshflow.core.config.config_experimental._state", {"growth": {}})
    yield tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    for name in NAMES:
        os.environ.pop(name, None)


def test_memory_growth_disables_preallocation(gpu):
    assert not tf.config.experimental.get_memory_growth(gpu)
    tf.config.experimental.set_memory_growth(gpu, True)
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert tf.config.experimental.get_memory_growth(gpu)
    tf.config.experimental.set_memory_growth(gpu, False)
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_growth_is_refused_when_the_gpu_is_in_use(gpu, monkeypatch):
    monkeypatch.setattr(gpu_memory, "restart_backend", lambda: False)
    with pytest.raises(RuntimeError, match="cannot be modified after being initialized"):
        tf.config.experimental.set_memory_growth(gpu, True)
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
    assert not tf.config.experimental.get_memory_growth(gpu)


def test_a_memory_limit_is_a_share_of_the_gpus_memory(gpu):
    limited = tf.config.LogicalDeviceConfiguration(memory_limit=20 * 1024)
    tf.config.set_logical_device_configuration(gpu, [limited])
    assert float(os.environ["XLA_CLIENT_MEM_FRACTION"]) == pytest.approx(0.25)
    assert tf.config.get_logical_device_configuration(gpu) == [limited]


def test_memory_limit_overrides_the_older_environment_variable(gpu, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
    gpu_memory.limit(40 * 1024)
    assert float(os.environ["XLA_CLIENT_MEM_FRACTION"]) == pytest.approx(0.5)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ


def test_a_gpu_is_not_split(gpu):
    two = [tf.config.LogicalDeviceConfiguration(1024)] * 2
    with pytest.raises(ValueError, match="Only CPUs can be split into logical devices, got 2"):
        tf.config.set_logical_device_configuration(gpu, two)


def test_a_client_that_is_started_again_reads_the_variables_again(monkeypatch):
    options = {"platform_name": "cuda", "memory_fraction": 0.5}
    factory = functools.partial(lambda name, options: None, "cuda", options=options)
    registration = type("Registration", (), {"factory": factory})()
    factories = {**jax_internals.xla_bridge._backend_factories, "cuda": registration}
    monkeypatch.setattr(jax_internals.xla_bridge, "_backend_factories", factories)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    jax_internals.renew_gpu_options()
    assert options["preallocate"] is False
    assert "memory_fraction" not in options


def test_repeated_setting_does_not_restart_backends(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setattr(gpu_memory, "restart_backend", lambda: pytest.fail("started again"))
    gpu_memory.grow(True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("GPU", "Failed parsing"), ("CPU:0", "not available"), ("unknown:0", "No matching devices")],
)
def test_names_of_devices_and_missing_statistics(name, text):
    with pytest.raises(ValueError, match=text):
        tf.config.experimental.get_memory_info(name)
    with pytest.raises(ValueError, match=r"Failed parsing|No matching|Cannot reset memory stats"):
        tf.config.experimental.reset_memory_stats(name)


def test_an_empty_name_keeps_the_device_of_an_outer_block():
    with tf.device("CPU:0"), tf.device(""), tf.device(tf.DeviceSpec()):
        assert tf.constant(1).device.endswith("CPU:0")
    with pytest.raises(ValueError, match=r"must be a tf\.config\.PhysicalDevice"):
        tf.config.experimental.get_device_details(tf.config.list_logical_devices()[0])
