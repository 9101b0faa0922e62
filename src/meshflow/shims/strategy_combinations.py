"""Strategies with names for tests: names of TensorFlow's modules `strategy_combinations` and `distribute.combinations`."""

from __future__ import annotations

import contextlib
from typing import Any

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.environment.types import PyTree
from meshflow.shims import test_combinations as combinations
from meshflow.shims.framework_tests import set_logical_devices_to_at_least
from meshflow.shims.test_combinations import Combination, NamedDistribution, NamedObject, combine

_tf: Any = get_public_package()

graph_and_eager_modes = ["graph", "eager"]
tf_function = NamedObject("TfFunction", _tf.function)
no_tf_function = NamedObject("NoTfFunction", lambda function: function)


class ClusterDistribution(NamedDistribution):
    """Strategy of several processes, whose tests are skipped.

    Args:
      name: Name of the strategy.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, _tf.distribute.MultiWorkerMirroredStrategy)

    def find_obstacle(self) -> str:
        """Return why tests of the strategy are skipped."""
        return "Test requires a cluster of several processes."


def _name_tpu_strategy(name: str) -> NamedDistribution:
    return NamedDistribution(name, _tf.distribute.TPUStrategy, required_tpu=True)


mirrored_strategy_with_two_cpus = combinations.mirrored_strategy_with_two_cpus
mirrored_strategy_with_two_gpus_no_merge_call = (
    combinations.mirrored_strategy_with_two_gpus_no_merge_call
)
central_storage_strategy_with_two_gpus = NamedDistribution(
    "CentralStorage2GPUs", _tf.distribute.experimental.CentralStorageStrategy, 2
)
central_storage_strategy_with_gpu_and_cpu = NamedDistribution(
    "CentralStorageCPUAndGPU", _tf.distribute.experimental.CentralStorageStrategy, 1
)
tpu_strategy_packed_var = _name_tpu_strategy("TPUPackedVar")
tpu_strategy_spmd = _name_tpu_strategy("TPUUseSPMD")
tpu_strategy_one_step = _name_tpu_strategy("TPUOneStep")
tpu_strategy_one_core = _name_tpu_strategy("TPUOneCore")
tpu_strategy_one_step_one_core = _name_tpu_strategy("TPUOneStepOneCore")

multi_worker_mirrored_2x1_cpu = ClusterDistribution("MultiWorkerMirrored2x1CPU")
multi_worker_mirrored_2x1_gpu = ClusterDistribution("MultiWorkerMirrored2x1GPU")
multi_worker_mirrored_2x1_gpu_noshare = ClusterDistribution("MultiWorkerMirrored2x1GPUNoShare")
multi_worker_mirrored_2x2_gpu = ClusterDistribution("MultiWorkerMirrored2x2GPU")
multi_worker_mirrored_2x2_gpu_no_merge_call = ClusterDistribution(
    "MultiWorkerMirrored2x2GPUNoMergeCall"
)
multi_worker_mirrored_4x1_cpu = ClusterDistribution("MultiWorkerMirrored4x1CPU")
one_device_strategy_on_worker_1 = ClusterDistribution("OneDeviceOnWorker1CPU")
one_device_strategy_gpu_on_worker_1 = ClusterDistribution("OneDeviceOnWorker1GPU")
parameter_server_strategy_3worker_2ps_cpu = ClusterDistribution("ParameterServer3Worker2PSCPU")
parameter_server_strategy_1worker_2ps_cpu = ClusterDistribution("ParameterServer1Worker2PSCPU")
parameter_server_strategy_3worker_2ps_1gpu = ClusterDistribution("ParameterServer3Worker2PS1GPU")
parameter_server_strategy_1worker_2ps_1gpu = ClusterDistribution("ParameterServer1Worker2PS1GPU")

strategies_minus_default_and_tpu = [
    combinations.one_device_strategy,
    combinations.one_device_strategy_gpu,
    combinations.mirrored_strategy_with_gpu_and_cpu,
    combinations.mirrored_strategy_with_two_gpus,
]
tpu_strategies = [
    combinations.tpu_strategy,
    tpu_strategy_one_step,
    tpu_strategy_packed_var,
    combinations.cloud_tpu_strategy,
]
all_strategies_minus_default = strategies_minus_default_and_tpu + tpu_strategies
two_replica_strategies = [
    combinations.mirrored_strategy_with_gpu_and_cpu,
    combinations.mirrored_strategy_with_two_gpus,
    multi_worker_mirrored_2x1_cpu,
    multi_worker_mirrored_2x1_gpu,
    combinations.tpu_strategy,
    central_storage_strategy_with_two_gpus,
]
four_replica_strategies = [multi_worker_mirrored_2x2_gpu, multi_worker_mirrored_4x1_cpu]
multidevice_strategies = [
    combinations.mirrored_strategy_with_gpu_and_cpu,
    combinations.mirrored_strategy_with_two_gpus,
    combinations.tpu_strategy,
]
multiworker_strategies = [
    multi_worker_mirrored_2x1_cpu,
    multi_worker_mirrored_2x1_gpu,
    multi_worker_mirrored_2x2_gpu,
]


def set_virtual_cpus_to_at_least(num_virtual_cpus: int) -> None:
    """Divide the CPU into devices, unless it has as many.

    Raises:
      RuntimeError: If the devices are in use.
    """
    set_logical_devices_to_at_least("CPU", num_virtual_cpus)


# The strategies need as many CPUs, and JAX cannot divide the CPU after the first test has used it.
with contextlib.suppress(RuntimeError):
    set_virtual_cpus_to_at_least(3)


def strategy_minus_tpu_combinations() -> list[Combination]:
    """Return all combinations of strategies except those of TPUs, and modes."""
    return combine(distribution=combinations.strategies_minus_tpu, mode=graph_and_eager_modes)


def all_strategy_combinations() -> list[Combination]:
    """Return all combinations of strategies and modes."""
    return combine(distribution=combinations.all_strategies, mode=graph_and_eager_modes)


def gather(strategy: PyTree, value: PyTree) -> PyTree:
    """Return the values of all replicas in a structure, each stacked to one tensor."""
    results = strategy.experimental_local_results
    return _tf.nest.map_structure(lambda leaf: _tf.stack(results(leaf)), value)


def in_main_process() -> bool:
    """Return True: the tests of one process run in it."""
    return True
