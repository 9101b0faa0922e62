"""Diagnosis of the machine and the installation for `meshflow doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import jax

from meshflow import kernels
from meshflow.environment import cpu_info
from meshflow.environment.jax_internals import SUPPORTED
from meshflow.kernels import descriptors, installation
from meshflow.kernels.library import (
    OWN_PREFIX,
    Library,
    are_enabled,
    emulates_tiles,
    read_isa_limit,
)

Rows = list[tuple[str, ...]]
_INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "bf16",
)
_PACKAGES = (*("jax", "jaxlib", "numpy", "ml_dtypes", "optax", "h5py", "ray", "grpcio", "pyarrow"),)
_PRECISIONS = ("float32", "bfloat16", "float16")


def list_instruction_sets() -> list[str]:
    """Return the instruction sets of the processor that speed up training."""
    return [name for name in _INSTRUCTION_SETS if name in cpu_info.read_cpu_flags()]


def _make_example_plans() -> dict[str, list[int] | None]:
    """Return kernel plans of typical computations by name; None if no kernel supports one."""
    image = descriptors.make_view((32, 32, 32, 64), (0, 3, 1, 2))
    kernel = descriptors.make_view((3, 3, 64, 64), (3, 2, 0, 1))
    left, right = (
        descriptors.make_view((512, 256), (0, 1)),
        descriptors.make_view((256, 512), (0, 1)),
    )
    unit, ones = (1, 1), (1, 1)
    return {
        "convolution": descriptors.describe_convolution(
            descriptors.FORWARD, 1, image, kernel, image, unit, unit, ones
        ),
        "its input gradient": descriptors.describe_convolution(
            descriptors.INPUT_GRADIENT, 1, image, kernel, image, unit, unit, ones
        ),
        "its kernel gradient": descriptors.describe_convolution(
            descriptors.KERNEL_GRADIENT, 1, image, kernel, image, unit, unit, ones
        ),
        "matrix product": descriptors.describe_matmul(
            left, right, descriptors.make_view((512, 512), (0, 1))
        ),
    }


def find_implementations() -> dict[str, dict[str, str]]:
    """Return the CPU implementation (XLA, oneDNN or own kernels) of each computation and precision."""
    library = kernels.status()
    implementations: dict[str, dict[str, str]] = {}
    for computation, plan in _make_example_plans().items():
        rows = implementations[computation] = {}
        for precision in _PRECISIONS:
            name = None
            if isinstance(library, Library) and plan is not None:
                name = library.find_implementation(plan, (precision,) * 3)
                if name is None and library.find_implementation(plan, ("float32",) * 3):
                    name = "in float32"
            is_own = name is not None and name.startswith(OWN_PREFIX)
            rows[precision] = "XLA" if name is None else name if is_own else f"oneDNN {name}"
    return implementations


def describe_huge_pages() -> str:
    """Describe whether large buffers get huge pages, which save thousands of page faults a step."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    setting = text.partition("[")[2].partition("]")[0]
    library = kernels.status()
    if setting == "madvise":
        requested = isinstance(library, Library) and library.huge_pages
        return (
            "requested" if requested else "not requested (kernels or MESHFLOW_HUGE_PAGES are off)"
        )
    return {"always": "always", "never": "never (disabled by the system)"}.get(setting, "unknown")


def describe_vector_extensions(library: Library) -> str:
    """Describe the vector extensions that kernels use, and the setting that limits them."""
    text = f"up to {library.level}" if library.level else "none of these"
    if read_isa_limit():
        text += f" (MESHFLOW_MAX_ISA={read_isa_limit()})"
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


def collect_findings() -> dict[str, Rows]:
    """Return all findings as table rows by heading."""
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
        version = library.read_version()
        state = f"oneDNN {version}" if version else "compiled, without oneDNN"
    else:
        state = f"XLA only ({library})"
    machine: Rows = [
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cores", str(os.cpu_count())),
        ("instruction sets", ", ".join(list_instruction_sets()) or "unknown"),
    ]
    if isinstance(library, Library):
        machine.append(("used by kernels", describe_vector_extensions(library)))
    machine.append(("huge pages", describe_huge_pages()))
    table = find_implementations()
    rows: Rows = [("CPU kernels", state, "", "")]
    rows.append(("", *_PRECISIONS))
    rows += [(name, *(names[p] for p in _PRECISIONS)) for name, names in table.items()]
    return {
        "Machine": machine,
        "Devices": devices,
        "Versions": versions,
        "CPU kernels": rows,
        "Precisions": list(describe_precisions().items()),
    }


def describe_precisions() -> dict[str, str]:
    """Describe how each mixed-precision policy performs on the default device."""
    from meshflow.keras.mixed_precision import float8  # noqa: PLC0415 - other commands do not need Keras

    device = jax.devices()[0]
    if device.platform == "cpu":
        products = find_implementations()["matrix product"]
        bfloat16, half = _describe_speed(products["bfloat16"]), _describe_speed(products["float16"])
    else:
        bfloat16 = half = "fast on matrix units"
    problem = float8.find_unavailability_reason()
    if problem and float8.is_emulated():
        problem = f"emulated ({float8.EMULATION_VARIABLE}), slower than mixed_bfloat16"
    return {
        "float32": "TensorFloat-32 products" if device.platform == "gpu" else "full",
        "mixed_bfloat16": bfloat16,
        "mixed_float16": half,
        "mixed_float8": problem or "fast on matrix units",
    }


def _describe_speed(code: str) -> str:
    """Describe the speed of 16-bit matrix products with the given CPU implementation."""
    units = {"amx": "AMX", "avx512_core_bf16": "AVX512-BF16", "avx512_core_fp16": "AVX512-FP16"}
    unit = next((name for part, name in units.items() if part in code), None)
    return f"fast ({unit})" if unit else "works, but computes in float32: slower than float32"


def list_advice() -> list[str]:
    """Return suggestions that would speed up training on this machine."""
    library = kernels.status()
    other = find_other_distribution()
    suggestions = [other] if other else []
    accelerated = jax.devices()[0].platform != "cpu"
    if not accelerated and not isinstance(library, Library):
        if not are_enabled():
            suggestions.append("The CPU kernels are disabled: unset MESHFLOW_KERNELS to use them.")
        elif installation.is_supported_platform():
            suggestions.append(
                f"Convolutions and bfloat16 are several times faster with oneDNN: {library}"
                if installation.has_onednn()
                else f"Large updates, lookups and pipelines are faster with the CPU kernels: {library}"
            )
        else:
            suggestions.append(
                "The CPU kernels require Linux on x86-64 or aarch64; XLA's kernels are used."
            )
    if not accelerated and Path("/proc/driver/nvidia/version").exists():
        suggestions.append(
            "There is an NVIDIA driver, but JAX has no GPU: pip install 'meshflow-tf[cuda]'."
        )
    return suggestions
