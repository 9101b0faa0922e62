"""The shared library of compiled handlers: loading, environment variables and queries."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from meshflow.environment import jax_internals
from meshflow.kernels import installation

NAME = "libmeshflow_onednn.so"
TARGET = "meshflow_onednn"
# Hash of the declarations of the library's functions, by `hash_interface` of hatch_build.py.
INTERFACE = "67064381"
# Number of cached query results; the handlers cache as many kernels.
MAX_CACHED_QUERIES = 1024
POOLING = "meshflow_pooling"
GATED_POOLING = "meshflow_gated_pooling"
CROSS_ENTROPY = "meshflow_cross_entropy"
RUNNING_SUMS = "meshflow_running_sums"
ADAM = "meshflow_adam"
ADAM_ROWS = "meshflow_adam_rows"
GATHER_ROWS = "meshflow_gather_rows"
SCATTER_ROWS = "meshflow_scatter_rows"
SUM_ROWS = "meshflow_sum_rows"
UPDATE_ROWS = "meshflow_update_rows"
RENEW = "meshflow_renew"
RECURRENT = "meshflow_recurrent"
BOUNDS_CHECK = "meshflow_bounds_check"
ATTENTION = "meshflow_attention"
COLORS = "meshflow_colors"
WARPED = "meshflow_warped"
# All handlers of XLA's foreign function interface, by the name of their symbol.
HANDLERS = (
    *(TARGET, POOLING, GATED_POOLING, CROSS_ENTROPY, RUNNING_SUMS, ADAM),
    *(GATHER_ROWS, SCATTER_ROWS, SUM_ROWS, UPDATE_ROWS, RENEW, RECURRENT, BOUNDS_CHECK),
    *(ATTENTION, ADAM_ROWS, COLORS, WARPED),
)
# Prefix of the implementation names of our C++ code.
OWN_PREFIX = "meshflow"
# Name of the implementation by Winograd's algorithm, with output tiles of 2 x 2.
WINOGRAD = "meshflow:winograd"
# Prefix of the implementations that compute block by block, each with its epilogue.
BLOCKED_PREFIX = "meshflow:blocked"

# Instruction set levels above the baseline, in the order of cpus.h.
ISA_LEVELS = ("AVX2", "AVX512", "AVX512_BF16", "AMX")
# oneDNN's names of the levels except the last.
ONEDNN_NAMES = {"AVX2": "AVX2", "AVX512": "AVX512_CORE", "AVX512_BF16": "AVX512_CORE_BF16"}

# oneDNN's codes of the element types that a descriptor may have.
TYPE_CODES = {"float32": "f", "bfloat16": "b", "float16": "h"}

# The shape and dtype of an operand or result.
Aval: TypeAlias = jax.core.ShapedArray | jax.ShapeDtypeStruct
Avals: TypeAlias = Sequence[Aval]
# A function of a primitive's operands that calls a handler.
HandlerCall: TypeAlias = Callable[..., Any]


class KernelsUnavailableError(RuntimeError):
    """The CPU kernels cannot be used; the message has the reason."""


def are_enabled() -> bool:
    """Check whether the environment enables the CPU kernels: MESHFLOW_KERNELS is not "xla".

    Raises:
      ValueError: If the variable is not "auto" (the default), "onednn" or "xla".
    """
    value = os.environ.get("MESHFLOW_KERNELS", "auto")
    if value not in ("auto", "onednn", "xla"):
        raise ValueError(f"MESHFLOW_KERNELS must be 'auto', 'onednn' or 'xla', got {value!r}.")
    return value != "xla"


def read_isa_limit() -> str | None:
    """Return the highest instruction set level allowed by MESHFLOW_MAX_ISA; None for no limit.

    Raises:
      ValueError: If the variable is not one of `ISA_LEVELS`.
    """
    value = os.environ.get("MESHFLOW_MAX_ISA") or None
    if value not in (None, *ISA_LEVELS):
        raise ValueError(f"MESHFLOW_MAX_ISA must be one of {', '.join(ISA_LEVELS)}, got {value!r}.")
    return value


def emulates_tiles() -> bool:
    """Check whether MESHFLOW_AMX requests emulated matrix tiles, for tests.

    Raises:
      ValueError: If the variable is not "auto" (the default) or "emulated".
    """
    value = os.environ.get("MESHFLOW_AMX", "auto")
    if value not in ("auto", "emulated"):
        raise ValueError(f"MESHFLOW_AMX must be 'auto' or 'emulated', got {value!r}.")
    return value == "emulated"


def _is_complete(path: Path) -> bool:
    """Check whether a shared library has all its bytes; loading a truncated one ends the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False
    (sections,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    # The section table is at the end of the file.
    return sections + size * count <= path.stat().st_size


class Library:
    """The loaded handlers.

    Args:
      path: Path of the compiled library.

    Attributes:
      compiled: The shared library.
      handlers: Handlers of `HANDLERS` that it contains, by name.
      level: Highest of `ISA_LEVELS` in use; None below the first.
      tiles: Whether bfloat16 convolutions may use matrix tiles, including emulated ones.
      huge_pages: Whether XLA's large buffers are allocated in huge pages.
      take_bounds_failure: Takes the failure that a bounds check recorded.

    Raises:
      KernelsUnavailableError: The library or oneDNN is missing or damaged, or needs a newer jaxlib.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise KernelsUnavailableError(f"{path} was not built; {installation.suggest_remedy()}")
        has_onednn = installation.has_onednn()
        onednn = installation.find_onednn() if has_onednn else None
        for file in (path, onednn):
            if file is not None and not _is_complete(file):
                raise KernelsUnavailableError(f"{file} is damaged; {installation.suggest_remedy()}")
        try:
            if has_onednn:
                ctypes.CDLL(str(onednn or installation.ONEDNN_FILE), ctypes.RTLD_GLOBAL)
        except OSError as error:
            remedy = (
                installation.OPENMP_REMEDY
                if "libgomp" in str(error)
                else installation.suggest_remedy()
            )
            raise KernelsUnavailableError(f"oneDNN does not load ({error}); {remedy}") from None
        try:
            self.compiled = ctypes.CDLL(str(path))
            loaded = str(onednn or installation.ONEDNN_FILE)
            if has_onednn and self.compiled.meshflow_use_team(loaded.encode()):
                raise OSError("oneDNN's calls of OpenMP cannot be replaced")
            self._check_interface(path)
            # A library without oneDNN lacks its handlers.
            handlers = {name: getattr(self.compiled, name, None) for name in HANDLERS}
            self.handlers = {name: handler for name, handler in handlers.items() if handler}
            self._query = self.compiled.meshflow_onednn_query if has_onednn else None
            self._set_threads = self.compiled.meshflow_onednn_set_threads
            self._packed_bytes = self.compiled.meshflow_onednn_packed_bytes if has_onednn else None
            targets = (RECURRENT, POOLING, GATED_POOLING, *([TARGET] if has_onednn else []))
            self._runs = {name: getattr(self.compiled, f"{name}_run") for name in targets}
            self._huge_pages = self.compiled.meshflow_huge_pages
            self._release = self.compiled.meshflow_release_memory
            self._offer = self.compiled.meshflow_offer_memory
            self._await = self.compiled.meshflow_await_memory
            self._limit = self.compiled.meshflow_limit
            self.take_bounds_failure = self.compiled.meshflow_take_bounds_failure
        except (OSError, AttributeError) as error:
            raise KernelsUnavailableError(
                f"{path} does not load ({error}); {installation.suggest_remedy()}"
            ) from None
        self._check_ffi_version(path)
        descriptor: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
        if self._query is not None:
            self._query.argtypes = [*descriptor, ctypes.c_char_p, ctypes.c_int64]
        if self._packed_bytes is not None:
            self._packed_bytes.argtypes, self._packed_bytes.restype = descriptor, ctypes.c_int64
        self.take_bounds_failure.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self.take_bounds_failure.restype = ctypes.c_int64
        for run in self._runs.values():
            run.argtypes = [*descriptor, ctypes.c_void_p]
        self._release.restype = ctypes.c_int64
        self._await.argtypes = [ctypes.c_int64, ctypes.c_int64]
        self._offer.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self.compiled.meshflow_holds_memory.argtypes = [ctypes.c_void_p]
        self._cached_implementation = functools.lru_cache(MAX_CACHED_QUERIES)(
            self._query_implementation
        )
        max_level, emulated = read_isa_limit(), emulates_tiles()
        level = -1 if max_level is None else ISA_LEVELS.index(max_level) + 1
        level = int(self._limit(level, int(emulated)))
        self.level = ISA_LEVELS[level - 1] if level > 0 else None
        self.tiles = level == len(ISA_LEVELS) or (emulated and self.supports("AVX512"))
        self.huge_pages = False

    def _check_interface(self, path: Path) -> None:
        get_interface = getattr(self.compiled, "meshflow_interface", None)
        if get_interface is not None:
            get_interface.restype = ctypes.c_char_p
        if get_interface is None or get_interface().decode() != INTERFACE:
            raise KernelsUnavailableError(
                f"{path} was compiled from sources of another version, with other arguments of its functions; compile "
                f"it again: {installation.suggest_remedy()}"
            )

    def _check_ffi_version(self, path: Path) -> None:
        # XLA ends the process if a handler was compiled with the headers of a newer version.
        get_version = self.compiled.meshflow_ffi_version
        installed = jax_internals.read_ffi_version()
        if installed is None:
            return
        get_version.restype = ctypes.c_char_p
        major, minor = map(int, get_version().decode().rpartition(" ")[2].split("."))
        if (major, minor) > installed:
            raise KernelsUnavailableError(
                f"{path} was compiled with the headers of a newer jaxlib than {jax_internals.JAXLIB_VERSION} (version "
                f"{major}.{minor} of XLA's foreign function interface, not {installed[0]}.{installed[1]}); "
                f"install a newer jaxlib within {jax_internals.SUPPORTED}, or compile the kernels again: {installation.suggest_remedy()}"
            )

    def read_version(self) -> str | None:
        """Return oneDNN's version; None if this machine has only the kernels without oneDNN."""
        if self._query is None:
            return None
        parts = (ctypes.c_int * 3)()
        self.compiled.meshflow_onednn_version(parts)
        return ".".join(map(str, parts))

    def has_handler(self, name: str) -> bool:
        """Check whether the library contains a handler."""
        return name in self.handlers

    def supports(self, level: str) -> bool:
        """Check whether the kernels may use an instruction set level."""
        return self.level is not None and ISA_LEVELS.index(self.level) >= ISA_LEVELS.index(level)

    def set_threads(self, num_threads: int) -> None:
        """Limit the number of threads of a computation."""
        self._set_threads(ctypes.c_int(num_threads))

    def enable_huge_pages(self) -> bool:
        """Allocate XLA's large buffers in huge pages from now on; return whether that is possible."""
        # The folder has one large library, and small ones that load it.
        files = jax_internals.LIBRARIES.glob("*.so")
        self.huge_pages = any([self._huge_pages(str(file).encode()) == 0 for file in files])
        return self.huge_pages

    @property
    def accepts_offers(self) -> bool:
        """Return whether XLA's buffers may be placed in offered memory: XLA then allocates large ones by our function."""
        return self.huge_pages

    def release_memory(self) -> int:
        """Free the memory cached for the next step; return the bytes of XLA's large buffers in it."""
        return int(self._release())

    def await_memory(self, num_bytes: int, milliseconds: int) -> bool:
        """Wait until the next XLA buffer of this size would reuse memory; return whether it would.

        Args:
          num_bytes: Size of the buffer.
          milliseconds: Longest time to wait.
        """
        return bool(self._await(num_bytes, milliseconds))

    def offer_memory(self, address: int, min_bytes: int, max_bytes: int) -> bool:
        """Offer memory for the next XLA buffer that this thread allocates; return whether possible.

        Args:
          address: Address of the memory.
          min_bytes: Minimum size of the buffer.
          max_bytes: Maximum size of the buffer.
        """
        return self.accepts_offers and self._offer(address, min_bytes, max_bytes) == 0

    def withdraw_memory(self) -> None:
        """Withdraw the memory that was offered to this thread."""
        if self.accepts_offers:
            self.compiled.meshflow_withdraw_memory()

    def holds_memory(self, address: int) -> bool:
        """Check whether an XLA buffer occupies offered memory at this address."""
        return self.accepts_offers and self.compiled.meshflow_holds_memory(address) != 0

    def find_implementation(self, descriptor: Sequence[int], types: Sequence[str]) -> str | None:
        """Return the name of the implementation of a descriptor, or None if there is no fast one.

        Args:
          descriptor: The descriptor.
          types: NumPy names of the element types of the operands, then of the results.
        """
        return self._cached_implementation(tuple(descriptor), "".join(TYPE_CODES[t] for t in types))

    def count_packed_bytes(self, descriptor: Sequence[int], types: Sequence[str]) -> int:
        """Return the bytes of a computation's packed weights, or 0 if they are not packed."""
        if self._packed_bytes is None:
            return 0
        integers, codes = np.array(descriptor, np.int64), "".join(TYPE_CODES[t] for t in types)
        return int(self._packed_bytes(integers.ctypes.data, len(descriptor), codes.encode()))

    def make_call(
        self, descriptor: Sequence[int], types: Sequence[str], target: str = TARGET
    ) -> Callable[..., None] | None:
        """Return a function that runs a descriptor without XLA, or None if the library has no oneDNN.

        Its arguments are arrays of the operands and of the results, all row-major.

        Args:
          descriptor: The descriptor.
          types: NumPy names of the element types of the operands, then of the results.
          target: The handler.
        """
        run = self._runs.get(target)
        if run is None:
            return None
        integers = np.array(descriptor, np.int64)
        codes = "".join(TYPE_CODES.get(t, "?") for t in types)
        fixed = integers.ctypes.data, len(integers), codes.encode()
        pointers = ctypes.c_void_p * len(types)

        def call(*arrays: np.ndarray, integers: np.ndarray = integers) -> None:
            if run(*fixed, pointers(*[a.__array_interface__["data"][0] for a in arrays])):
                raise RuntimeError(f"{target} could not run the descriptor {integers.tolist()}.")

        return call

    def _query_implementation(self, descriptor: tuple[int, ...], types: str) -> str | None:
        if self._query is None:
            return None
        integers = np.array(descriptor, np.int64)
        text = ctypes.create_string_buffer(512)
        failed = self._query(integers.ctypes.data, len(descriptor), types.encode(), text, len(text))
        name = text.value.decode()
        return None if failed or name.startswith("ref") or ":ref" in name else name


@functools.cache
def status() -> Library | KernelsUnavailableError:
    """Return the handlers, or the reason why there are none; the first call loads them."""
    if not are_enabled():
        return KernelsUnavailableError("MESHFLOW_KERNELS=xla disables them.")
    path = Path(__file__).parent / NAME
    try:
        library = Library(path)
        for name, handler in library.handlers.items():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except KernelsUnavailableError as error:
        is_forced = os.environ.get("MESHFLOW_KERNELS") == "onednn"
        reason = error
        if not (is_forced or installation.is_supported_platform()):
            reason = KernelsUnavailableError(installation.describe_platform())
        warnings.warn(f"CPU kernels are left to XLA, which is slower: {reason}", stacklevel=2)
        return reason
    if os.environ.get("MESHFLOW_HUGE_PAGES", "1") != "0":
        library.enable_huge_pages()
    # NPROC determines the size of XLA's thread pool, which may exceed the number of cores.
    if os.environ.get("NPROC", "").isdigit():
        library.set_threads(max(1, min(int(os.environ["NPROC"]), os.cpu_count() or 1)))
    return library


def load() -> Library | None:
    """Return the handlers, or None if they are not available."""
    found = status()
    return found if isinstance(found, Library) else None


def release_memory() -> int:
    """Free the memory cached by the handlers if they are loaded; return the bytes."""
    library = load() if status.cache_info().currsize else None
    return library.release_memory() if library is not None else 0


def await_memory(num_bytes: int, milliseconds: int) -> bool:
    """Wait until the next XLA buffer of this size would reuse memory, if the handlers are loaded; return whether it would."""
    library = load() if status.cache_info().currsize else None
    return library is not None and library.await_memory(num_bytes, milliseconds)


def trim_heap() -> None:
    """Return free memory of the heap to the system, where the C library can.

    Memory that other threads freed is not reused by this one, and large blocks remain in the heap.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
