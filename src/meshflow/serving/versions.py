"""The versions of a served model: folders that are looked after while requests are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.saved_model import contains_saved_model, load
from meshflow.serving.batching import Batcher, sizes_up_to
from meshflow.serving.protocol import BadRequest, NotFound, Specs

__all__ = ["Settings", "Version", "Versions"]

_log = logging.getLogger("meshflow")


@dataclasses.dataclass
class Settings:
    """How a model is served.

    Attributes:
      most_rows: the greatest number of rows of one call; 1 for no batching.
      wait: seconds that a call waits for more rows; by default requests are joined while another one runs.
      warm_up: whether a version is compiled for all sizes before it is asked.
      keep: how many of the newest versions are served; 0 for all.
      poll: seconds after which the folder is looked at again.
      labels: numbers of versions by label.
    """

    most_rows: int = 32
    wait: float = 0.0
    warm_up: bool = True
    keep: int = 1
    poll: float = 1.0
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Signature:
    """A signature of a loaded version."""

    def __init__(self, function: Any, executor: ThreadPoolExecutor, settings: Settings) -> None:
        self._function, self._executor = function, executor
        self.inputs: Specs = dict(function.structured_input_signature[1])
        self.outputs: Specs = dict(function.structured_outputs)
        self.batcher: Batcher | None = None
        if settings.most_rows > 1 and self._by_rows():
            self.batcher = Batcher(self.run, executor, settings.most_rows, settings.wait)

    def _by_rows(self) -> bool:
        """Whether a row of the results depends on a row of the inputs, by their open first sizes."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        shapes = [s.shape for s in specs]
        return bool(self.inputs) and all(s.rank and s.as_list()[0] is None for s in shapes)

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
        """Compiles it for numbers of rows, where the other sizes are known."""
        shapes = [s.shape.as_list() for s in self.inputs.values() if s.shape.rank is not None]
        if len(shapes) != len(self.inputs) or any(None in shape[1:] for shape in shapes):
            return
        for size in sizes if self.batcher is not None else [1]:
            feed = {}
            for name, spec in self.inputs.items():
                shape = [size if d is None else d for d in spec.shape.as_list()]
                text = spec.dtype.name == "string"
                feed[name] = np.full(shape, b"", object) if text else np.zeros(shape, spec.dtype.dtype)  # fmt: skip
            self.run(feed)


class Version:
    """One version of a model, loaded."""

    def __init__(self, number: int, path: Path, settings: Settings) -> None:
        self.number = number
        self._model = load(str(path))
        # One call at a time: XLA uses all processors for each.
        self._executor = ThreadPoolExecutor(1, f"version-{number}")
        self.signatures = {
            name: Signature(function, self._executor, settings)
            for name, function in self._model.signatures.items()
        }
        if settings.warm_up:
            for signature in self.signatures.values():
                try:
                    signature.warm_up(sizes_up_to(settings.most_rows))
                except Exception as error:
                    _log.warning("Version %d is not warmed up: %s", number, error)

    def signature(self, name: str | None) -> Signature:
        """A signature by name; default 'serving_default'.

        Raises:
          BadRequest: when there is none of this name.
        """
        name = name or "serving_default"
        if name not in self.signatures:
            raise BadRequest(f'Serving signature key "{name}" not found.')
        return self.signatures[name]


class Versions:
    """The versions in a folder.

    Args:
      name: the model's.
      folder: with a folder for each version, whose names are numbers; or a saved model itself, version 1.
      settings: a `Settings`.
    """

    def __init__(self, name: str, folder: Any, settings: Settings) -> None:
        self.name, self._folder, self.settings = name, Path(folder), settings
        self.available: dict[int, Version] = {}
        self.states: dict[int, tuple[str, str]] = {}
        self._failed: dict[int, float] = {}

    def find(self, number: int | None = None, label: str | None = None) -> Version:
        """A version to answer a request: by default the newest.

        Raises:
          NotFound: when it is not served.
        """
        wanted = f"Latest({self.name})" if number is None else f"Specific({self.name}, {number})"
        if label is not None:
            if label not in self.settings.labels:
                raise NotFound(f"Unrecognized servable version label: {label}")
            number = self.settings.labels[label]
            wanted = f"Specific({self.name}, {number})"
        if number is None and self.available:
            number = max(self.available)
        if number is None or number not in self.available:
            raise NotFound(f"Servable not found for request: {wanted}")
        return self.available[number]

    def _there(self) -> dict[int, Path]:
        if not self._folder.is_dir():
            return {}
        if contains_saved_model(str(self._folder)):
            return {1: self._folder}
        found = {int(p.name): p for p in self._folder.iterdir() if p.name.isdigit() and p.is_dir()}
        keep = self.settings.keep
        labelled = set(self.settings.labels.values())
        newest = sorted(found)[-keep:] if keep else sorted(found)
        return {n: found[n] for n in sorted(found) if n in newest or n in labelled}

    async def refresh(self) -> None:
        """Loads versions that came, then lets go of those that are to be served no more.

        A version that cannot be loaded is tried again when its folder changes; until one is loaded the older ones
        stay. Requests that an old version has begun to answer are answered.
        """
        there = await asyncio.to_thread(self._there)
        for number, path in there.items():
            if number not in self.available and self._changed(number, path):
                await self._load(number, path)
        if not any(n in self.available for n in there):
            return
        for number in [n for n in self.available if n not in there]:
            del self.available[number]
            self.states[number] = "END", ""
            _log.info("%s: version %d is served no more", self.name, number)

    def _changed(self, number: int, path: Path) -> bool:
        times = [p.stat().st_mtime for p in [path, *path.rglob("*")]]
        newest = max(times) + len(times)
        if self._failed.get(number) == newest:
            return False
        self._failed[number] = newest
        return True

    async def _load(self, number: int, path: Path) -> None:
        self.states[number] = "LOADING", ""
        try:
            version = await asyncio.to_thread(Version, number, path, self.settings)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.states[number] = "END", message
            _log.warning("%s: version %d cannot be loaded: %s", self.name, number, message)
            return
        self.available[number] = version
        self.states[number] = "AVAILABLE", ""
        _log.info("%s: version %d is served", self.name, number)

    async def watch(self) -> None:
        """Looks at the folder again and again."""
        while True:
            await asyncio.sleep(self.settings.poll)
            try:
                await self.refresh()
            except OSError as error:
                _log.warning("%s: %s", self.name, error)
