"""Diagnosis of the machine and the installation for `meshflow doctor`."""

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
    """Return the instruction sets of the processor that speed up training."""
    return [name for name in _SETS if name in processor.flags()]


def _examples() -> dict[str, list[int] | None]:
    """Return kernel plans of typical computations by name; None if no kernel supports one."""
    image = descriptors.view((32, 32, 32, 64), (0, 3, 1, 2))
    kernel = descriptors.view((3, 3, 64, 64), (3, 2, 0, 1))
    left, right = descriptors.view((512, 256), (0, 1)), descriptors.view((256, 512), (0, 1))
    unit, ones = (1, 1), (1, 1)
    return {
        "convolution": descriptors.convolution(
            descriptors.FORWARD, 1, image, kernel, image, unit, unit, ones
        ),
        "its input gradient": descriptors.convolution(
            descriptors.INPUT_GRADIENT, 1, image, kernel, image, unit, unit, ones
        ),
        "its kernel gradient": descriptors.convolution(
            descriptors.KERNEL_GRADIENT, 1, image, kernel, image, unit, unit, ones
        ),
        "matrix product": descriptors.matmul(left, right, descriptors.view((512, 512), (0, 1))),
    }


def serving() -> dict[str, dict[str, str]]:
    """Return the CPU implementation (XLA, oneDNN or own kernels) of each computation and precision."""
    library = kernels.status()
    implementations: dict[str, dict[str, str]] = {}
    for computation, plan in _examples().items():
        rows = implementations[computation] = {}
        for precision in _PRECISIONS:
            name = None
            if isinstance(library, Library) and plan is not None:
                name = library.implementation(plan, (precision,) * 3)
                if name is None and library.implementation(plan, ("float32",) * 3):
                    name = "in float32"
            is_own = name is not None and name.startswith(OWN)
            rows[precision] = "XLA" if name is None else name if is_own else f"oneDNN {name}"
    return implementations


def huge_pages() -> str:
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


def used(library: Library) -> str:
    """Describe the vector extensions that kernels use, and the setting that limits them."""
    text = f"up to {library.level}" if library.level else "none of these"
    if limit():
        text += f" (MESHFLOW_MAX_ISA={limit()})"
    return f"{text}, matrix tiles emulated (MESHFLOW_AMX)" if emulates_tiles() else text


def describe_supported_versions() -> str:
    """Return the ranges of Python, JAX and glibc that this installation works with."""
    try:
        installed = importlib.metadata.distribution("meshflow")
    except importlib.metadata.PackageNotFoundError:
        return f"JAX {SUPPORTED}"
    text = f"Python {installed.metadata['Requires-Python']}, JAX and jaxlib {SUPPORTED}"
    # Only wheels with compiled kernels declare a glibc version.
    match = re.search(r"manylinux_(\d+)_(\d+)", installed.read_text("WHEEL") or "")
    return f"{text}, glibc >={match[1]}.{match[2]}" if match else text


def report() -> dict[str, Rows]:
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
        state = f"oneDNN {library.version()}"
    else:
        state = f"XLA only ({library})"
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
    rows += [(name, *(names[p] for p in _PRECISIONS)) for name, names in table.items()]
    return {
        "Machine": machine,
        "Devices": devices,
        "Versions": versions,
        "CPU kernels": rows,
        "Precisions": list(precisions().items()),
    }


def precisions() -> dict[str, str]:
    """Describe how each mixed-precision policy performs on the default device."""
    from meshflow.keras.mixed_precision import float8  # noqa: PLC0415 - other commands do not need Keras

    device = jax.devices()[0]
    if device.platform == "cpu":
        products = serving()["matrix product"]
        bfloat16, half = _speed(products["bfloat16"]), _speed(products["float16"])
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
    """Describe the speed of 16-bit matrix products with the given CPU implementation."""
    units = {"amx": "AMX", "avx512_core_bf16": "AVX512-BF16", "avx512_core_fp16": "AVX512-FP16"}
    unit = next((name for part, name in units.items() if part in code), None)
    return f"fast ({unit})" if unit else "works, but computes in float32: slower than float32"


def advice() -> list[str]:
    """Return suggestions that would speed up training on this machine."""
    library = kernels.status()
    suggestions = []
    accelerated = jax.devices()[0].platform != "cpu"
    if not accelerated and not isinstance(library, Library):
        if not wanted():
            suggestions.append("The CPU kernels are disabled: unset MESHFLOW_KERNELS to use them.")
        elif installation.possible():
            suggestions.append(
                f"Convolutions and bfloat16 are several times faster with oneDNN: {library}"
            )
        else:
            suggestions.append("oneDNN kernels require Linux on x86-64; XLA's kernels are used.")
    if not accelerated and Path("/proc/driver/nvidia/version").exists():
        suggestions.append("JAX does not use the NVIDIA GPU: pip install 'meshflow[cuda]'.")
    return suggestions
