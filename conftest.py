"""The world tests and examples in docstrings run in: four virtual CPU devices, fixed seeds.

`MESHFLOW_TEST_PLATFORM=cuda` runs tests on a GPU instead, those marked `gpu` (`pytest -m gpu`) for which it is meant.
"""

import os
import pathlib
import tarfile

DEVICES = 4
PLATFORM = os.environ.get("MESHFLOW_TEST_PLATFORM", "cpu")
# Pipelines and reference values are computed on the CPU, also beside a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu" if PLATFORM == "cpu" else f"{PLATFORM},cpu")
# XLA sizes its thread pool by NPROC; fewer than four threads a device can deadlock collectives.
os.environ.setdefault("NPROC", str(4 * DEVICES))
os.environ.setdefault("MESHFLOW_CACHE_DIR", "")

import tiers

tiers.keep_bytecode()
tiers.share_compiled_programs()
if PLATFORM == "cpu":
    tiers.write_plain_code()

import jax

if PLATFORM == "cpu":
    jax.config.update("jax_num_cpu_devices", DEVICES)

import hypothesis
import hypothesis.internal.conjecture.providers
import numpy as np
import pytest

import helpers
import meshflow as tf
from meshflow.core.dispatch.tiers import TierSettings

# Every run draws the same examples, however slowly; soak tests draw new ones.
hypothesis.settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
if not helpers.SOAK:
    hypothesis.settings.load_profile("fixed")
    # Otherwise each worker parses all imported modules for constants to draw, and the examples of a test depend on the
    # tests beside it.
    providers = hypothesis.internal.conjecture.providers
    providers._get_local_constants = lambda: providers._local_constants

pytest_plugins = ["capabilities"]  # what could not run is named at the end

# Programs that tests run in processes of their own.
collect_ignore_glob = [
    # The import of these packages makes Meshflow the TensorFlow of the process.
    "src/meshflow/shims/packages/*",
    "*/scripts/*",
    "*/workers/*",
    "tests/editors/*",
    "tests/dtensor/articles.py",
    "tests/dtensor/in_two_processes.py",
    "tests/distribute/parallel/in_two_processes.py",
    "tests/dtensor/on_eight_devices.py",
    "tests/distribute/parallel/products_on_eight_devices.py",
    "tests/distribute/parallel/memory_of_checkpoints.py",
    "tests/distribute/parallel/pairs_on_eight_devices.py",
    "tests/distribute/parallel/profiled_on_eight_devices.py",
    "tests/distribute/parallel/proofs_on_eight_devices.py",
    "tests/distribute/parallel/on_many_devices.py",
    "tests/distribute/parallel/planner/compiled_plans.py",
    "tests/profiler/training_servers.py",
    "tests/profiler/training_worker.py",
]

# Where a NaN is always a mistake; ops are tested at the edges of their domains.
NAN_CHECKED = {"core", "data", "keras", "kernels", "passes"}
TESTS = pathlib.Path(__file__).parent / "tests"


def pytest_configure(config):
    tiers.register(config)


def pytest_collection_modifyitems(config, items):
    """Tests marked `soak` run with MESHFLOW_SOAK=1 only, as `make test-all` sets it; those marked `long` come first."""
    # A worker that begins one at the end leaves the others idle.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if helpers.SOAK:
        return
    config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("soak")])
    items[:] = [i for i in items if not i.get_closest_marker("soak")]


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """The folder of SavedModels that TensorFlow wrote, with inputs and outputs, which tests read and do not change."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(TESTS / "reference" / "saved_models.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _names_of_examples(doctest_namespace):
    """The modules that docs/api.md assumes in the examples of docstrings."""
    doctest_namespace.update(tf=tf, tnp=tf.experimental.numpy, ops=tf.keras.ops)


@pytest.fixture(autouse=True)
def _fresh_state(request):
    """Seeds, layer names and switches as at the start of a program; NaN checks where they help."""
    area = request.path.relative_to(TESTS).parts[0] if TESTS in request.path.parents else ""
    wanted = area in NAN_CHECKED and request.node.get_closest_marker("nan_expected") is None
    jax.config.update("jax_debug_nans", wanted)
    np.random.seed(0)
    tf.random.set_seed(0)
    tf.keras.backend.reset_uids()
    yield
    tf.config.run_functions_eagerly(False)
    tf.keras.mixed_precision.set_global_policy(None)


@pytest.fixture
def programs():
    """The names of the programs that are compiled during the test."""
    with helpers.record_compilations() as names:
        yield names


@pytest.fixture
def compile_tier(monkeypatch):
    """Compile every program in this test."""
    monkeypatch.setattr(TierSettings, "tier", "compile")


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(0)
