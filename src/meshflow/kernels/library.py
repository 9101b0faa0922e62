"""The compiled handlers: where they are, whether they load, and which code they would run."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshflow.environment import jax_internals
from meshflow.kernels import installation

NAME = "libmeshflow_onednn.so"
TARGET = "meshflow_onednn"
# How many answers about descriptors are kept; the handlers keep as many kernels.
KEPT = 1024
POOLING = "meshflow_pooling"
GATED_POOLING = "meshflow_gated_pooling"
CROSS_ENTROPY = "meshflow_cross_entropy"
RUNNING_SUMS = "meshflow_running_sums"
ADAM = "meshflow_adam"
GATHER_ROWS = "meshflow_gather_rows"
SCATTER_ROWS = "meshflow_scatter_rows"
SUM_ROWS = "meshflow_sum_rows"
UPDATE_ROWS = "meshflow_update_rows"
RENEW = "meshflow_renew"
# Every handler of XLA's foreign function interface, by the name of its symbol.
HANDLERS = (
    *(TARGET, POOLING, GATED_POOLING, CROSS_ENTROPY, RUNNING_SUMS, ADAM),
    *(GATHER_ROWS, SCATTER_ROWS, SUM_ROWS, UPDATE_ROWS, RENEW),
)
# What the names of our own code begin with.
OWN = "meshflow"
# The name of the code that filters in tiles of 2 x 2 places of the result.
WINOGRAD = "meshflow:winograd"
# What the name of code begins with that computes block by block, each with its epilogue.
BLOCKED = "meshflow:blocked"

# How far the processor's vector extensions may be used, in the order of cpus.h after those that all have.
LEVELS = ("AVX2", "AVX512", "AVX512_BF16", "AMX")
# oneDNN's words for those below the last.
ONEDNN_NAMES = {"AVX2": "AVX2", "AVX512": "AVX512_CORE", "AVX512_BF16": "AVX512_CORE_BF16"}

# oneDNN's codes for the element types a descriptor may have.
TYPES = {"float32": "f", "bfloat16": "b", "float16": "h"}


class KernelsUnavailableError(RuntimeError):
    """The CPU kernels cannot be used; the message says why."""


def wanted() -> bool:
    """Whether the environment asks for the CPU kernels (the default); MESHFLOW_KERNELS=xla does not.

    Raises:
      ValueError: for any other value of the variable.
    """
    value = os.environ.get("MESHFLOW_KERNELS", "auto")
    if value not in ("auto", "onednn", "xla"):
        raise ValueError(f"MESHFLOW_KERNELS must be 'auto', 'onednn' or 'xla', got {value!r}.")
    return value != "xla"


def limit() -> str | None:
    """How far the environment lets vector extensions be used, one of `LEVELS`: MESHFLOW_MAX_ISA; None for all.

    Raises:
      ValueError: for any other value of the variable.
    """
    value = os.environ.get("MESHFLOW_MAX_ISA") or None
    if value not in (None, *LEVELS):
        raise ValueError(f"MESHFLOW_MAX_ISA must be one of {', '.join(LEVELS)}, got {value!r}.")
    return value


def emulates_tiles() -> bool:
    """Whether the environment asks for matrix tiles in software, for tests: MESHFLOW_AMX=emulated.

    Raises:
      ValueError: for any other value of the variable but 'auto'.
    """
    value = os.environ.get("MESHFLOW_AMX", "auto")
    if value not in ("auto", "emulated"):
        raise ValueError(f"MESHFLOW_AMX must be 'auto' or 'emulated', got {value!r}.")
    return value == "emulated"


def _is_whole(path: Path) -> bool:
    """Whether a shared library has all its bytes: loading one cut short ends the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False
    (sections,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    # The table of sections is the last thing in the file.
    return sections + size * count <= path.stat().st_size


class Library:
    """The loaded handlers.

    Args:
      path: the compiled file.

    Attributes:
      compiled: the shared library.
      handlers: those of `HANDLERS` that it has, by name.
      level: the best of `LEVELS` that is used here, None where there is none.
      tiles: whether convolutions in bfloat16 may run on matrix tiles, emulated ones included.
      huge_pages: whether huge pages are put behind XLA's buffers.
      places: whether these may lie in memory that is offered.

    Raises:
      KernelsUnavailableError: the file or oneDNN is missing or damaged, or the file needs a newer jaxlib.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise KernelsUnavailableError(f"{path} was not built; {installation.remedy()}")
        onednn = installation.onednn()
        for file in (path, onednn):
            if file is not None and not _is_whole(file):
                raise KernelsUnavailableError(f"{file} is damaged; {installation.remedy()}")
        # Threads that spin while they wait take the cores from XLA's.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            ctypes.CDLL(str(onednn or installation.ONEDNN), ctypes.RTLD_GLOBAL)
        except OSError as error:
            mend = installation.OPENMP if "libgomp" in str(error) else installation.remedy()
            raise KernelsUnavailableError(f"oneDNN does not load ({error}); {mend}") from None
        try:
            self.compiled = ctypes.CDLL(str(path))
            # One built before there was some handler still does the rest.
            found = {name: getattr(self.compiled, name, None) for name in HANDLERS}
            self.handlers = {name: handler for name, handler in found.items() if handler}
            self._query = self.compiled.meshflow_onednn_query
            self._set_threads = self.compiled.meshflow_onednn_set_threads
            self._packed_bytes = getattr(self.compiled, "meshflow_onednn_packed_bytes", None)
            self._huge_pages = getattr(self.compiled, "meshflow_huge_pages", None)
            self._release = getattr(self.compiled, "meshflow_release_memory", None)
            self._offer = getattr(self.compiled, "meshflow_offer_memory", None)
        except (OSError, AttributeError) as error:
            raise KernelsUnavailableError(
                f"{path} does not load ({error}); {installation.remedy()}"
            ) from None
        self._check_ffi_version(path)
        descriptor: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
        self._query.argtypes = [*descriptor, ctypes.c_char_p, ctypes.c_int64]
        if self._packed_bytes is not None:
            self._packed_bytes.argtypes, self._packed_bytes.restype = descriptor, ctypes.c_int64
        if self._release is not None:
            self._release.restype = ctypes.c_int64
        if self._offer is not None:
            self._offer.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
            self.compiled.meshflow_holds_memory.argtypes = [ctypes.c_void_p]
        self._implementation = functools.lru_cache(KEPT)(self._ask)
        limited, emulated = limit(), emulates_tiles()
        number = -1 if limited is None else LEVELS.index(limited) + 1
        try:
            number = int(self.compiled.meshflow_limit(number, int(emulated)))
        except AttributeError:
            if limited or emulated:
                raise KernelsUnavailableError(
                    f"{path} knows nothing of MESHFLOW_MAX_ISA and MESHFLOW_AMX; {installation.remedy()}"
                ) from None
        self.level = LEVELS[number - 1] if number > 0 else None
        self.tiles = number == len(LEVELS) or (emulated and self.has("AVX512"))
        self.huge_pages = self.places = False

    def _check_ffi_version(self, path: Path) -> None:
        # XLA ends the process when a handler was compiled with the headers of a newer version.
        get_version = getattr(self.compiled, "meshflow_ffi_version", None)
        installed = jax_internals.read_ffi_version()
        if get_version is None or installed is None:
            return
        get_version.restype = ctypes.c_char_p
        major, minor = map(int, get_version().decode().rpartition(" ")[2].split("."))
        if (major, minor) > installed:
            raise KernelsUnavailableError(
                f"{path} was compiled with the headers of a newer jaxlib than {jax_internals.JAXLIB_VERSION} (version "
                f"{major}.{minor} of XLA's foreign function interface, not {installed[0]}.{installed[1]}); "
                f"install a newer jaxlib within {jax_internals.SUPPORTED}, or compile the kernels again: {installation.remedy()}"
            )

    def version(self) -> str:
        """oneDNN's version."""
        parts = (ctypes.c_int * 3)()
        self.compiled.meshflow_onednn_version(parts)
        return ".".join(map(str, parts))

    def has_handler(self, name: str) -> bool:
        """Whether there is one of `HANDLERS`."""
        return name in self.handlers

    def has(self, level: str) -> bool:
        """Whether kernels use one of `LEVELS` here."""
        return self.level is not None and LEVELS.index(self.level) >= LEVELS.index(level)

    def set_threads(self, number: int) -> None:
        """How many threads a computation may use."""
        self._set_threads(ctypes.c_int(number))

    def ask_for_huge_pages(self) -> bool:
        """Puts huge pages behind large buffers of XLA from now on; whether that could be done."""
        # The folder has one large library and small ones that lead to it.
        files = jax_internals.LIBRARIES.glob("*.so")
        if self._huge_pages is not None:
            self.huge_pages = any([self._huge_pages(str(file).encode()) == 0 for file in files])
            self.places = self.huge_pages and self._offer is not None
        return self.huge_pages

    def release_memory(self) -> int:
        """Gives back the memory kept for the next step; the bytes of XLA's large buffers among it."""
        return int(self._release()) if self._release is not None else 0

    def offer_memory(self, address: int, least: int, most: int) -> bool:
        """Has the next buffer of XLA that this thread makes lie somewhere, if it is as large; whether that can be.

        Args:
          address: where.
          least: of how many bytes the buffer is at least.
          most: of how many it may be.
        """
        offer = self._offer if self.places else None
        return offer is not None and offer(address, least, most) == 0

    def withdraw_memory(self) -> None:
        """Takes back what was offered to this thread."""
        if self.places:
            self.compiled.meshflow_withdraw_memory()

    def holds_memory(self, address: int) -> bool:
        """Whether a buffer of XLA lies where memory was offered.

        Args:
          address: where.
        """
        return self.places and self.compiled.meshflow_holds_memory(address) != 0

    def implementation(self, descriptor: Sequence[int], types: Sequence[str]) -> str | None:
        """The name of the code that oneDNN would run for a descriptor; None when it has only slow code.

        Args:
          descriptor: integers as `descriptors` makes them.
          types: NumPy names of the operands' element types, results last.
        """
        return self._implementation(tuple(descriptor), "".join(TYPES[t] for t in types))

    def packed_bytes(self, descriptor: Sequence[int], types: Sequence[str]) -> int:
        """Bytes of a computation's weights in the layout that it reads; 0 where they are read as they lie.

        Args:
          descriptor: integers as `descriptors` makes them.
          types: NumPy names of the operands' element types, results last.
        """
        if self._packed_bytes is None:
            return 0
        numbers, codes = np.array(descriptor, np.int64), "".join(TYPES[t] for t in types)
        return int(self._packed_bytes(numbers.ctypes.data, len(descriptor), codes.encode()))

    def _ask(self, descriptor: tuple[int, ...], types: str) -> str | None:
        numbers = np.array(descriptor, np.int64)
        text = ctypes.create_string_buffer(512)
        failed = self._query(numbers.ctypes.data, len(descriptor), types.encode(), text, len(text))
        name = text.value.decode()
        return None if failed or name.startswith("ref") or ":ref" in name else name


@functools.cache
def status() -> Library | KernelsUnavailableError:
    """The handlers, loaded and made known to XLA at the first call, or why there are none."""
    if not wanted():
        return KernelsUnavailableError("MESHFLOW_KERNELS=xla turns them off.")
    path = Path(__file__).parent / NAME
    try:
        library = Library(path)
        for name, handler in library.handlers.items():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except KernelsUnavailableError as error:
        # Where they cannot be, nothing is wrong that somebody could mend.
        if installation.possible() or os.environ.get("MESHFLOW_KERNELS") == "onednn":
            warnings.warn(f"CPU kernels are left to XLA, which is slower: {error}", stacklevel=2)
        return error
    if os.environ.get("MESHFLOW_HUGE_PAGES", "1") != "0":
        library.ask_for_huge_pages()
    # The variable that sizes XLA's thread pool, which may be larger than the machine.
    if os.environ.get("NPROC", "").isdigit():
        library.set_threads(max(1, min(int(os.environ["NPROC"]), os.cpu_count() or 1)))
    return library


def load() -> Library | None:
    """The handlers, or None where there are none."""
    found = status()
    return found if isinstance(found, Library) else None


def release_memory() -> int:
    """`Library.release_memory` where the handlers were loaded; it does not load them."""
    library = load() if status.cache_info().currsize else None
    return library.release_memory() if library is not None else 0
