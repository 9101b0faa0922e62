"""The versions of a served model: folders that are looked after while requests are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.saved_model import contains_saved_model, load
from meshflow.serving.batching import Batcher, sizes_up_to
from meshflow.serving.protocol import Specs

__all__ = ["Settings", "Version", "Versions"]

_log = logging.getLogger("meshflow")


@dataclasses.dataclass
class Settings:
    """How a model is served.

    Attributes:
      most_rows: the greatest number of rows of a call that answers several requests; 1 for no batching.
      wait: seconds that a call waits for more rows; by default requests are joined while another one runs.
      warm_up: whether a version is compiled for all sizes before it is asked.
      keep: how many of the newest versions are served; 0 for all.
      versions: numbers of those that are served in place of the newest; default none.
      poll: seconds after which the folder is looked at again.
      labels: numbers of versions by label; they are served as long as they are there.
      most_bytes: the greatest size of a request's body; larger ones are refused.
    """

    most_rows: int = 32
    wait: float = 0.0
    warm_up: bool = True
    keep: int = 1
    poll: float = 1.0
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    versions: Sequence[int] = ()
    most_bytes: int = 1 << 28


class Signature:
    """A signature of a loaded version.

    Args:
      name: its name.
      function: what it computes, of tensors by name.
      executor: where it runs.
      settings: a `Settings`.
    """

    def __init__(self, name: str, function: Any, executor: ThreadPoolExecutor, settings: Settings) -> None:  # fmt: skip
        self.name, self._function, self._executor = name, function, executor
        self.inputs: Specs = dict(function.structured_input_signature[1])
        self.outputs: Specs = dict(function.structured_outputs)
        self.batcher: Batcher | None = None
        if settings.most_rows > 1 and self._by_rows():
            self.batcher = Batcher(self.run, executor, settings.most_rows, settings.wait)

    def _by_rows(self) -> bool:
        """Whether a row of the results depends on a row of the inputs, by their open sizes."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        if not self.inputs or not all(s.shape.rank and s.shape[0] is None for s in specs):
            return False
        # The length of the longest row, say, would be another request's.
        if not any(None in s.shape.as_list()[1:] for s in self.outputs.values()):
            return True
        open_inputs = [s for s in self.inputs.values() if None in s.shape.as_list()[1:]]
        texts = any(s.dtype.name == "string" for s in self.inputs.values())
        return bool(open_inputs) and not texts

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results for arrays by name."""
        found = self._function(**{n: convert_to_tensor(a) for n, a in arrays.items()})
        return {name: np.asarray(tensor) for name, tensor in found.items()}

    async def answer(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The results for a request."""
        rows = {a.shape[0] for a in arrays.values() if a.ndim}
        if self.batcher is not None and len(rows) == 1 and 0 not in rows:
            return await self.batcher.submit(arrays)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.run, arrays)

    def warm_up(self, sizes: list[int]) -> None:
        """Compiles it for numbers of rows, where the other sizes are known.

        Requests are not joined any more if that changes what a row gives, as it does where rows are compared.
        """
        shapes = [s.shape.as_list() for s in self.inputs.values() if s.shape.rank is not None]
        if len(shapes) != len(self.inputs) or any(None in shape[1:] for shape in shapes):
            return
        sizes = sizes if self.batcher is not None else [1]
        rng = np.random.default_rng(0)
        rows = {name: _sample(spec, max(sizes), rng) for name, spec in self.inputs.items()}
        results = [self.run({n: a[:size] if a.ndim else a for n, a in rows.items()}) for size in sizes]  # fmt: skip
        if self.batcher is not None and not _by_row(results[0], results[-1], sizes[-1]):
            _log.info("%s: requests are not joined, as results depend on the other rows", self.name)
            self.batcher = None


def _sample(spec: TensorSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows for an input: random numbers in [-1, 1), zeros of integers, empty texts."""
    shape = [rows if d is None else d for d in spec.shape.as_list()]
    if spec.dtype.name == "string":
        return np.full(shape, b"", object)
    if spec.dtype.is_floating:
        return rng.uniform(-1, 1, shape).astype(spec.dtype.dtype)
    return np.zeros(shape, spec.dtype.dtype)


def _by_row(alone: Mapping[str, np.ndarray], among: Mapping[str, np.ndarray], rows: int) -> bool:
    """Whether a call of some rows gives as many, the first of them about what it gives alone."""
    for name, array in alone.items():
        one, other = array[:1], among[name][:1]
        if len(array) != 1 or len(among[name]) != rows:
            return False
        if one.dtype == object or one.dtype.kind in "biu":
            same = bool(np.array_equal(one, other))
        else:
            one, other = (np.nan_to_num(a.astype(np.complex128)) for a in (one, other))
            bound = 0.02 * float(np.abs(one).max(initial=0.0)) + 1e-6
            same = one.shape == other.shape and bool(np.all(np.abs(one - other) <= bound))
        if not same:
            return False
    return True


class Version:
    """One version of a model, loaded."""

    def __init__(self, number: int, path: Path, settings: Settings) -> None:
        self.number = number
        self._model = load(str(path))
        # One call at a time: XLA uses all processors for each.
        self._executor = ThreadPoolExecutor(1, f"version-{number}")
        self.signatures = {
            name: Signature(name, function, self._executor, settings)
            for name, function in self._model.signatures.items()
        }
        if settings.warm_up:
            for signature in self.signatures.values():
                try:
                    signature.warm_up(sizes_up_to(settings.most_rows))
                except Exception as error:
                    _log.warning(
                        "%s of version %d is not warmed up: %s", signature.name, number, error
                    )

    def signature(self, name: str) -> Signature:
        """A signature by name.

        Raises:
          InvalidArgumentError: when there is none of this name.
        """
        if name not in self.signatures:
            raise InvalidArgumentError(
                f'Serving signature name: "{name}" not found in signature def'
            )
        return self.signatures[name]

    def batches(self) -> tuple[int, int]:
        """How often it was run for batches, and how many rows these had."""
        batchers = [s.batcher for s in self.signatures.values() if s.batcher is not None]
        return sum(b.calls for b in batchers), sum(b.rows for b in batchers)


class Versions:
    """The versions in a folder.

    Args:
      name: the model's.
      folder: with a folder for each version, whose names are numbers; or a saved model itself, version 1.
      settings: a `Settings`.
    """

    def __init__(self, name: str, folder: Any, settings: Settings) -> None:
        self.name, self.folder, self.settings = name, Path(folder), settings
        self.available: dict[int, Version] = {}
        self.states: dict[int, tuple[str, str]] = {}
        self._seen: dict[int, float] = {}
        self._past = (0, 0)

    def find(self, number: int | None = None, label: str | None = None) -> Version:
        """A version to answer a request: by default the newest.

        Raises:
          NotFoundError: when it is not served.
        """
        wanted = f"Latest({self.name})" if number is None else f"Specific({self.name}, {number})"
        if label is not None:
            if label not in self.settings.labels:
                raise NotFoundError(f"Unrecognized servable version label: {label}")
            number = self.settings.labels[label]
            wanted = f"Specific({self.name}, {number})"
        if number is None and self.available:
            number = max(self.available)
        if number is None or number not in self.available:
            raise NotFoundError(f"Servable not found for request: {wanted}")
        return self.available[number]

    def states_of(self, number: int | None = None, label: str | None = None) -> dict[int, tuple[str, str]]:  # fmt: skip
        """The states of versions, the newest first, each with its error; of all unless one is named.

        Raises:
          NotFoundError: when there is none.
        """
        if label is not None:
            number = self.find(label=label).number
        if number is not None and number not in self.states:
            raise NotFoundError(f"Could not find version {number} of model {self.name}")
        if not self.states:
            raise NotFoundError(f"Could not find any versions of model {self.name}")
        numbers = sorted(self.states, reverse=True) if number is None else [number]
        return {n: self.states[n] for n in numbers}

    def _there(self) -> dict[int, Path]:
        """The folders of versions."""
        if not self.folder.is_dir():
            return {}
        if contains_saved_model(str(self.folder)):
            return {1: self.folder}
        return {int(p.name): p for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir()}

    def _chosen(self, numbers: Iterable[int]) -> set[int]:
        """Those of some versions that are to be served."""
        found = sorted(numbers)
        keep, named = self.settings.keep, set(self.settings.versions)
        newest = [n for n in found if n in named] if named else found[-keep:] if keep else found
        return {*newest, *(n for n in found if n in self.settings.labels.values())}

    async def refresh(self) -> None:
        """Loads versions that came, then lets go of those that are to be served no more.

        A version that cannot be loaded is tried again when its folder changes, and does not count until then: the
        one before is served. Requests that an old version has begun to answer are answered.
        """
        there = await asyncio.to_thread(self._there)
        failed: set[int] = set()
        while wanted := self._chosen(set(there) - failed) - set(self.available):
            number = min(wanted)
            if not (
                self._changed(number, there[number]) and await self._load(number, there[number])
            ):
                failed.add(number)
        stay = self._chosen(n for n in self.available if n in there)
        for number in [n for n in self.available if stay and n not in stay]:
            self._drop(number)

    def batches(self) -> tuple[int, int]:
        """How often versions were run for batches, and how many rows these had."""
        found = [self._past, *(version.batches() for version in self.available.values())]
        return sum(calls for calls, _ in found), sum(rows for _, rows in found)

    def close(self) -> None:
        """Lets go of all versions."""
        for number in list(self.available):
            self._drop(number)

    def _drop(self, number: int) -> None:
        calls, rows = self.available.pop(number).batches()
        self._past = self._past[0] + calls, self._past[1] + rows
        self._seen.pop(number, None)
        self.states[number] = "END", ""
        _log.info("%s: version %d is served no more", self.name, number)

    def _changed(self, number: int, path: Path) -> bool:
        """Whether a version's folder is another one than when it was last tried."""
        times = [p.stat().st_mtime for p in [path, *path.rglob("*")]]
        newest = max(times) + len(times)
        if self._seen.get(number) == newest:
            return False
        self._seen[number] = newest
        return True

    async def _load(self, number: int, path: Path) -> bool:
        """Whether a version could be loaded."""
        self.states[number] = "LOADING", ""
        try:
            version = await asyncio.to_thread(Version, number, path, self.settings)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.states[number] = "END", message
            _log.warning("%s: version %d cannot be loaded: %s", self.name, number, message)
            return False
        self.available[number] = version
        self.states[number] = "AVAILABLE", ""
        _log.info("%s: version %d is served", self.name, number)
        return True
