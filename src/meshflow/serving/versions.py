"""Versions of a served model, which are loaded and unloaded while requests are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import StrPath
from meshflow.saved_model import contains_saved_model, load
from meshflow.saved_model.manifest.composite_values import list_components
from meshflow.saved_model.programs.restored_signatures import RestoredSignature
from meshflow.serving.batching import Batcher, list_batch_sizes
from meshflow.serving.protocol import Specs

_log = logging.getLogger("meshflow")


@dataclasses.dataclass
class Settings:
    """Serving settings.

    Attributes:
      most_rows: Maximum number of rows of a call that answers several requests; 1: no batching.
      wait: Seconds that a call waits for more rows; 0 batches only while a call runs.
      warm_up: Whether to compile a version for all batch sizes before it gets requests.
      keep: Number of newest versions to serve; 0 serves all.
      versions: Numbers of the versions to serve instead of the newest; empty for none.
      poll: Seconds between checks of the folder.
      labels: Version numbers by label; these versions are served as long as they exist.
      most_bytes: Maximum size of a request's body in bytes; larger requests are rejected.
      most_bytes_in_flight: Maximum size of all requests and responses together that the server
        holds; more requests are rejected.
      deadline: Seconds after which a request fails, from its first byte to its result.
      hosts: Names of this server that clients may use, in addition to localhost and IP addresses. "*"
        accepts all names in the header `Host`, but only the others in `Origin`, which browsers send.
        By default, `serve` accepts no name if it listens on this machine only, and otherwise "*",
        as does an `application` in another program.
    """

    most_rows: int = 32
    wait: float = 0.0
    warm_up: bool = True
    keep: int = 1
    poll: float = 1.0
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    versions: Sequence[int] = ()
    most_bytes: int = 1 << 26
    most_bytes_in_flight: int = 1 << 28
    deadline: float = 60.0
    hosts: Sequence[str] | None = None


def _flatten_results(specs: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return results, or their specs, with the components of composite tensors by name.

    The components of a result `x` are `x`, `x_1` and so on, as those of arguments: flat values and row splits of a
    ragged tensor; indices, values and dense shape of a sparse one.
    """
    flat: dict[str, Any] = {}
    for name, spec in specs.items():
        is_composite = is_composite_spec(spec)
        parts = list_components(spec, results[name]) if is_composite else [results[name]]
        for number, part in enumerate(parts):
            flat[f"{name}_{number}" if number else name] = part
    return flat


class ServedSignature:
    """A signature of a loaded version. It takes and returns the components of composite tensors.

    Args:
      name: Name of the signature.
      function: Function of tensors by name.
      executor: Executor of the calls.
      settings: Serving settings.
    """

    def __init__(self, name: str, function: Any, executor: ThreadPoolExecutor, settings: Settings) -> None:  # fmt: skip
        self.name, self._function, self._executor = name, function, executor
        # Computations in Python would delay the requests to other models.
        if isinstance(function, RestoredSignature):
            function.disable_interpreter()
        self.inputs: Specs = dict(function.structured_input_signature[1])
        self._results = dict(function.structured_outputs)
        self.outputs: Specs = _flatten_results(self._results, self._results)
        self.batcher: Batcher | None = None
        self._start_time: float | None = None
        if settings.most_rows > 1 and self._is_row_wise():
            self.batcher = Batcher(self.run, executor, settings.most_rows, settings.wait)

    def _is_row_wise(self) -> bool:
        """Check, by static shapes, whether a row of the outputs depends on one row of the inputs."""
        has_composites = len(self.outputs) > len(self._results) or any(
            map(self._is_partition, self.inputs)
        )
        if has_composites or getattr(self._function, "has_unknown_sizes", False):
            return False
        specs = [*self.inputs.values(), *self.outputs.values()]
        if not self.inputs or not all(s.shape.rank and s.shape[0] is None for s in specs):
            return False
        # A dynamic size, such as the length of the longest row, could depend on other requests.
        if not any(None in s.shape.as_list()[1:] for s in self.outputs.values()):
            return True
        open_inputs = [s for s in self.inputs.values() if None in s.shape.as_list()[1:]]
        texts = any(s.dtype.name == "string" for s in self.inputs.values())
        return bool(open_inputs) and not texts

    def _is_partition(self, name: str) -> bool:
        """Check whether an input may be the row splits of another input, of which the rows are not those of a batch."""
        base, _, number = name.rpartition("_")
        spec = self.inputs[name]
        return (
            number.isdigit()
            and base in self.inputs
            and spec.dtype.is_integer
            and spec.shape.rank == 1
        )

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the signature on arrays by name."""
        self._start_time = time.monotonic()
        try:
            results = self._function(**{n: convert_to_tensor(a) for n, a in arrays.items()})
            flat = _flatten_results(self._results, results)
            return {name: np.asarray(tensor) for name, tensor in flat.items()}
        finally:
            self._start_time = None

    def count_busy_seconds(self) -> float:
        """Return the time for which the current call has been running; 0 without a call."""
        start = self._start_time
        return 0.0 if start is None else time.monotonic() - start

    async def answer(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the results for the arrays of a request."""
        rows = {a.shape[0] for a in arrays.values() if a.ndim}
        if self.batcher is not None and len(rows) == 1 and 0 not in rows:
            return await self.batcher.submit(arrays)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.run, arrays)

    def warm_up(self, sizes: list[int]) -> None:
        """Compile the signature for batch sizes, if all other dimensions are static.

        Batching is disabled if the results of a row depend on the other rows.
        """
        shapes = [s.shape.as_list() for s in self.inputs.values() if s.shape.rank is not None]
        if len(shapes) != len(self.inputs) or any(None in shape[1:] for shape in shapes):
            return
        sizes = sizes if self.batcher is not None else [1]
        rng = np.random.default_rng(0)
        rows = {name: _make_sample(spec, max(sizes), rng) for name, spec in self.inputs.items()}
        has_rows = {n: bool(s.shape.rank) and s.shape[0] is None for n, s in self.inputs.items()}
        results = [self.run({n: a[:size] if has_rows[n] else a for n, a in rows.items()}) for size in sizes]  # fmt: skip
        if self.batcher is not None and not _matches_single_row(results[0], results[-1], sizes[-1]):
            _log.info("%s: batching is disabled, because results depend on other rows", self.name)
            self.batcher = None


def _make_sample(spec: TensorSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows for an input: uniform floats in [-1, 1), zeros for integers, empty strings."""
    shape = [rows if d is None else d for d in spec.shape.as_list()]
    if spec.dtype.name == "string":
        return np.full(shape, b"", object)
    if spec.dtype.is_floating:
        return rng.uniform(-1, 1, shape).astype(spec.dtype.dtype)
    return np.zeros(shape, spec.dtype.dtype)


def _matches_single_row(
    single: Mapping[str, np.ndarray], batched: Mapping[str, np.ndarray], rows: int
) -> bool:
    """Check that a call returns one row per input row, and the first row as in a call with one row."""
    for name, array in single.items():
        first, other = array[:1], batched[name][:1]
        if len(array) != 1 or len(batched[name]) != rows:
            return False
        if first.dtype == object or first.dtype.kind in "biu":
            same = bool(np.array_equal(first, other))
        else:
            first, other = (np.nan_to_num(a.astype(np.complex128)) for a in (first, other))
            bound = 0.02 * float(np.abs(first).max(initial=0.0)) + 1e-6
            same = first.shape == other.shape and bool(np.all(np.abs(first - other) <= bound))
        if not same:
            return False
    return True


class Version:
    """A loaded version of a model."""

    def __init__(self, number: int, path: Path, settings: Settings) -> None:
        self.number = number
        self._model = load(str(path))
        # Calls run one at a time, because XLA uses all cores for each.
        self._executor = ThreadPoolExecutor(1, f"version-{number}")
        self.signatures = {
            name: ServedSignature(name, function, self._executor, settings)
            for name, function in self._model.signatures.items()
        }
        if settings.warm_up:
            for signature in self.signatures.values():
                try:
                    signature.warm_up(list_batch_sizes(settings.most_rows))
                except Exception as error:
                    _log.warning(
                        "Could not warm up %s of version %d: %s", signature.name, number, error
                    )

    def get_signature(self, name: str) -> ServedSignature:
        """Return a signature by name.

        Raises:
          InvalidArgumentError: The version lacks the signature.
        """
        if name not in self.signatures:
            raise InvalidArgumentError(
                f'Serving signature name: "{name}" not found in signature def'
            )
        return self.signatures[name]

    def count_busy_seconds(self) -> float:
        """Return the time for which the current call has been running; 0 without a call."""
        return max((s.count_busy_seconds() for s in self.signatures.values()), default=0.0)

    def count_batches(self) -> tuple[int, int]:
        """Return the number of calls and of rows in batches."""
        batchers = [s.batcher for s in self.signatures.values() if s.batcher is not None]
        return sum(b.calls for b in batchers), sum(b.rows for b in batchers)


class ModelVersions:
    """The versions of a model in a folder.

    Args:
      name: Name of the model.
      folder: Folder with one saved model per version, named by its number; or one saved model.
      settings: Serving settings.
    """

    def __init__(self, name: str, folder: StrPath, settings: Settings) -> None:
        self.name, self.folder, self.settings = name, Path(folder), settings
        self.available: dict[int, Version] = {}
        self.states: dict[int, tuple[str, str]] = {}
        self._folder_stamps: dict[int, float] = {}
        self._unloaded_batches = (0, 0)

    def find(self, number: int | None = None, label: str | None = None) -> Version:
        """Return the version that answers a request; by default the newest.

        Raises:
          NotFoundError: The version is not served.
        """
        model = f"Latest({self.name})" if number is None else f"Specific({self.name}, {number})"
        if label is not None:
            if label not in self.settings.labels:
                raise NotFoundError(f"Unrecognized servable version label: {label}")
            number = self.settings.labels[label]
            model = f"Specific({self.name}, {number})"
        if number is None and self.available:
            number = max(self.available)
        if number is None or number not in self.available:
            raise NotFoundError(f"Servable not found for request: {model}")
        return self.available[number]

    def get_states(self, number: int | None = None, label: str | None = None) -> dict[int, tuple[str, str]]:  # fmt: skip
        """Return state and error of all versions, the newest first, or of one version.

        Raises:
          NotFoundError: There is no such version.
        """
        if label is not None:
            number = self.find(label=label).number
        if number is not None and number not in self.states:
            raise NotFoundError(f"Could not find version {number} of model {self.name}")
        if not self.states:
            raise NotFoundError(f"Could not find any versions of model {self.name}")
        numbers = sorted(self.states, reverse=True) if number is None else [number]
        return {n: self.states[n] for n in numbers}

    def _list_folders(self) -> dict[int, Path]:
        """Return the folders of all versions."""
        if not self.folder.is_dir():
            return {}
        if contains_saved_model(str(self.folder)):
            return {1: self.folder}
        return {int(p.name): p for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir()}

    def _select_versions(self, numbers: Iterable[int]) -> set[int]:
        """Return the version numbers that should be served."""
        available = sorted(numbers)
        keep, explicit = self.settings.keep, set(self.settings.versions)
        newest = available[-keep:] if keep else available
        if explicit:
            newest = [n for n in available if n in explicit]
        return {*newest, *(n for n in available if n in self.settings.labels.values())}

    async def refresh(self) -> None:
        """Load new versions, then unload versions that should not be served any more.

        A version that fails to load is retried when its folder changes; until then, the previous
        version is served. Requests to an unloaded version that are already running are completed.
        """
        folders = await asyncio.to_thread(self._list_folders)
        failed: set[int] = set()
        while missing := self._select_versions(set(folders) - failed) - set(self.available):
            number = min(missing)
            if not (
                self._has_changed(number, folders[number])
                and await self._load_version(number, folders[number])
            ):
                failed.add(number)
        kept = self._select_versions(n for n in self.available if n in folders)
        for number in [n for n in self.available if kept and n not in kept]:
            self._unload(number)

    def count_busy_seconds(self) -> float:
        """Return the time for which the longest current call has been running; 0 without a call."""
        return max((v.count_busy_seconds() for v in self.available.values()), default=0.0)

    def count_batches(self) -> tuple[int, int]:
        """Return the number of calls and of rows in batches of all versions so far."""
        counts = [
            self._unloaded_batches,
            *(version.count_batches() for version in self.available.values()),
        ]
        return sum(calls for calls, _ in counts), sum(rows for _, rows in counts)

    def close(self) -> None:
        """Unload all versions."""
        for number in list(self.available):
            self._unload(number)

    def _unload(self, number: int) -> None:
        calls, rows = self.available.pop(number).count_batches()
        self._unloaded_batches = self._unloaded_batches[0] + calls, self._unloaded_batches[1] + rows
        self._folder_stamps.pop(number, None)
        self.states[number] = "END", ""
        _log.info("%s: unloaded version %d", self.name, number)

    def _has_changed(self, number: int, path: Path) -> bool:
        """Check whether the folder of a version has changed since the last attempt to load it."""
        times = [p.stat().st_mtime for p in [path, *path.rglob("*")]]
        newest = max(times) + len(times)
        if self._folder_stamps.get(number) == newest:
            return False
        self._folder_stamps[number] = newest
        return True

    async def _load_version(self, number: int, path: Path) -> bool:
        """Load a version, and return whether it succeeded."""
        self.states[number] = "LOADING", ""
        try:
            version = await asyncio.to_thread(Version, number, path, self.settings)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.states[number] = "END", message
            _log.warning("%s: could not load version %d: %s", self.name, number, message)
            return False
        self.available[number] = version
        self.states[number] = "AVAILABLE", ""
        _log.info("%s: loaded version %d", self.name, number)
        return True
