"""What this machine and installation can do: the findings of `meshflow doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import jax

from meshflow import kernels
from meshflow.environment import processor
from meshflow.environment.jax_internals import SUPPORTED
from meshflow.kernels import descriptors, installation
from meshflow.kernels.library import OWN, Library, emulates_tiles, limit, wanted

Rows = list[tuple[str, ...]]
_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "asimd", "bf16")
_PACKAGES = (*("jax", "jaxlib", "numpy", "ml_dtypes", "optax", "h5py", "ray", "grpcio", "pyarrow"),)
_PRECISIONS = ("float32", "bfloat16", "float16")


def instruction_sets() -> list[str]:
    """The processor's instruction sets that matter for training."""
    return [name for name in _SETS if name in processor.flags()]


def _examples() -> dict[str, list[int] | None]:
    """Plans of typical computations."""
    image = descriptors.view((32, 32, 32, 64), (0, 3, 1, 2))
    kernel = descriptors.view((3, 3, 64, 64), (3, 2, 0, 1))
    left, right = descriptors.view((512, 256), (0, 1)), descriptors.view((256, 512), (0, 1))
    one, ones = (1, 1), (1, 1)
    return {
        "convolution": descriptors.convolution(
            descriptors.FORWARD, 1, image, kernel, image, one, one, ones
        ),
        "its input gradient": descriptors.convolution(
            descriptors.INPUT_GRADIENT, 1, image, kernel, image, one, one, ones
        ),
        "its kernel gradient": descriptors.convolution(
            descriptors.KERNEL_GRADIENT, 1, image, kernel, image, one, one, ones
        ),
        "matrix product": descriptors.matmul(left, right, descriptors.view((512, 512), (0, 1))),
    }


def serving() -> dict[str, dict[str, str]]:
    """Which code computes what on the CPU, by computation and precision."""
    library = kernels.status()
    found: dict[str, dict[str, str]] = {}
    for what, plan in _examples().items():
        found[what] = {}
        for precision in _PRECISIONS:
            name = None
            if isinstance(library, Library) and plan is not None:
                name = library.implementation(plan, (precision,) * 3)
                if name is None and library.implementation(plan, ("float32",) * 3):
                    name = "in float32"
            ours = name is not None and name.startswith(OWN)
            found[what][precision] = "XLA" if name is None else name if ours else f"oneDNN {name}"
    return found


def huge_pages() -> str:
    """Whether large buffers get huge pages, which saves tens of thousands of page faults a step."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    setting = text.partition("[")[2].partition("]")[0]
    library = kernels.status()
    if setting == "madvise":
        asked = isinstance(library, Library) and library.huge_pages
        return (
            "asked for" if asked else "not asked for (CPU kernels or MESHFLOW_HUGE_PAGES are off)"
        )
    return {"always": "always", "never": "never: the system grants none"}.get(setting, "unknown")


def used(library: Library) -> str:
    """How far kernels use vector extensions, and what limits them."""
    text = f"up to {library.level}" if library.level else "none of these"
    if limit():
        text += f" (MESHFLOW_MAX_ISA={limit()})"
    return f"{text}, matrix tiles emulated (MESHFLOW_AMX)" if emulates_tiles() else text


def describe_supported_versions() -> str:
    """Return the ranges of Python, JAX and glibc that this installation works with."""
    text = f"JAX and jaxlib {SUPPORTED}"
    oldest = (0, 0)
    # Only wheels with compiled code name the oldest glibc: jaxlib's, and ours with kernels.
    for name in (installation.DISTRIBUTION, "jaxlib"):
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if name == installation.DISTRIBUTION:
            text = f"Python {installed.metadata['Requires-Python']}, {text}"
        found = re.search(r"manylinux_(\d+)_(\d+)", installed.read_text("WHEEL") or "")
        if found:
            oldest = max(oldest, (int(found[1]), int(found[2])))
    return f"{text}, glibc >={oldest[0]}.{oldest[1]}" if oldest > (0, 0) else text


def find_other_distribution() -> str | None:
    """Return advice if another distribution, called `meshflow` like ours is imported, is installed; None if not."""
    try:
        other = importlib.metadata.distribution("meshflow")
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(__file__).resolve().parents[1]
    files = (Path(str(file.locate())).resolve() for file in other.files or ())
    overlap = " in the same folder" if any(file.is_relative_to(folder) for file in files) else ""
    return (
        f"The distribution meshflow {other.version} is installed{overlap}. It is another project, or Meshflow from "
        f"before it was called {installation.DISTRIBUTION}, and can replace modules of this package. Run: "
        f"pip uninstall meshflow, then install {installation.DISTRIBUTION} again."
    )


def report() -> dict[str, Rows]:
    """The findings, as rows by heading."""
    library = kernels.status()
    devices: Rows = [(str(d.id), d.platform, d.device_kind) for d in jax.devices()]
    versions: Rows = [
        ("supported", describe_supported_versions()),
        ("python", platform.python_version()),
    ]
    for name in _PACKAGES:
        try:
            versions.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            versions.append((name, "not installed"))
    if isinstance(library, Library):
        state = f"oneDNN {library.version()}"
    else:
        state = f"XLA's own ({library})"
    machine: Rows = [
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cores", str(os.cpu_count())),
        ("instruction sets", ", ".join(instruction_sets()) or "unknown"),
    ]
    if isinstance(library, Library):
        machine.append(("used by kernels", used(library)))
    machine.append(("huge pages", huge_pages()))
    table = serving()
    rows: Rows = [("CPU kernels", state, "", "")]
    rows.append(("", *_PRECISIONS))
    rows += [(what, *(names[p] for p in _PRECISIONS)) for what, names in table.items()]
    return {
        "Machine": machine,
        "Devices": devices,
        "Versions": versions,
        "CPU kernels": rows,
        "Precisions": list(precisions().items()),
    }


def precisions() -> dict[str, str]:
    """What each mixed-precision policy would do on the default device."""
    from meshflow.keras.mixed_precision import float8  # noqa: PLC0415 - other commands need no Keras

    device = jax.devices()[0]
    if device.platform == "cpu":
        served = serving()["matrix product"]
        bfloat16, half = _speed(served["bfloat16"]), _speed(served["float16"])
    else:
        bfloat16 = half = "fast on matrix units"
    problem = float8.unavailable()
    if problem and float8.emulated():
        problem = f"emulated ({float8.EMULATE}), slower than mixed_bfloat16"
    return {
        "float32": "TensorFloat-32 products" if device.platform == "gpu" else "full",
        "mixed_bfloat16": bfloat16,
        "mixed_float16": half,
        "mixed_float8": problem or "fast on matrix units",
    }


def _speed(code: str) -> str:
    """What the code that serves products of 16-bit floats on the CPU is worth."""
    units = {"amx": "AMX", "avx512_core_bf16": "AVX512-BF16", "avx512_core_fp16": "AVX512-FP16"}
    unit = next((name for part, name in units.items() if part in code), None)
    return f"fast by {unit}" if unit else "works, computed in float32: slower than float32"


def advice() -> list[str]:
    """What to do to be faster here."""
    library = kernels.status()
    other = find_other_distribution()
    found = [other] if other else []
    accelerated = jax.devices()[0].platform != "cpu"
    if not accelerated and not isinstance(library, Library):
        if not wanted():
            found.append("The CPU kernels are turned off: unset MESHFLOW_KERNELS to use them.")
        elif installation.possible():
            found.append(
                f"Convolutions and bfloat16 are several times faster with oneDNN: {library}"
            )
        else:
            found.append("oneDNN kernels exist for Linux on x86-64 only; XLA's are used here.")
    if not accelerated and Path("/proc/driver/nvidia/version").exists():
        found.append(
            "There is an NVIDIA driver, but JAX has no GPU: pip install 'meshflow-tf[cuda]'."
        )
    return found
