"""The models that a server has: one, or those that a file of TensorFlow Serving's configuration lists."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.serving.messages import ModelServerConfig
from meshflow.serving.versions import Settings, Version, Versions

__all__ = ["Models", "configured"]

_log = logging.getLogger("meshflow")


def configured(content: str, settings: Settings) -> dict[str, tuple[str, Settings]]:
    """Folders and settings of models by name.

    Args:
      content: a `ModelServerConfig` as text, with a `model_config_list`.
      settings: what is not said there.

    Raises:
      InvalidArgumentError: for anything else.

    Example:
      >>> text = "model_config_list { config { name: 'digits' base_path: '/models/digits' } }"
      >>> configured(text, Settings())["digits"][0]
      '/models/digits'
    """
    try:
        held = text_format.Parse(content, ModelServerConfig()).model_config_list.config
    except (text_format.ParseError, UnicodeError) as error:
        raise InvalidArgumentError(f"The models' configuration cannot be read: {error}") from None
    found: dict[str, tuple[str, Settings]] = {}
    for entry in held:
        if not entry.name or not entry.base_path:
            raise InvalidArgumentError(
                f"The models' configuration has a model without a name or base_path: {entry}"
            )
        if entry.name in found:
            raise InvalidArgumentError(f"The models' configuration names {entry.name!r} twice.")
        if entry.model_platform not in ("", "tensorflow"):
            raise InvalidArgumentError(
                f"The model {entry.name!r} has the platform {entry.model_platform!r}, expected 'tensorflow'."
            )
        policy = entry.model_version_policy
        chosen = policy.WhichOneof("kind")
        keep = settings.keep
        if chosen in ("all", "latest"):
            keep = 0 if chosen == "all" else policy.latest.num_versions or 1
        own = dataclasses.replace(
            settings,
            keep=keep,
            versions=tuple(policy.specific.versions),
            labels={**settings.labels, **entry.version_labels},
        )
        found[entry.name] = entry.base_path, own
    if not found:
        raise InvalidArgumentError("The models' configuration lists no model in model_config_list.")
    return found


class Models:
    """Models by name.

    Args:
      configs: folders and settings by name.
      file: where they are read again when it changes, or None.
      settings: a `Settings`, for what the file does not say.
    """

    def __init__(
        self,
        configs: Mapping[str, tuple[Any, Settings]],
        file: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._file, self._read = file, ""
        self._models: dict[str, Versions] = {}
        if file is not None:
            self._read = file.read_text()
            configs = configured(self._read, self.settings)
        for name, (folder, own) in configs.items():
            self._models[name] = Versions(name, folder, own)

    async def _reconfigure(self, configs: Mapping[str, tuple[Any, Settings]]) -> None:
        """Makes the models those of a file that changed."""
        for name in [n for n in self._models if n not in configs]:
            self._models.pop(name).close()
            _log.info("%s is served no more", name)
        for name, (folder, settings) in configs.items():
            held = self._models.get(name)
            if held is not None and held.folder == Path(folder):
                held.settings = settings
                continue
            fresh = Versions(name, folder, settings)
            # A model that moved is answered by the old one until the new one is loaded.
            await fresh.refresh()
            self._models[name] = fresh

    def named(self, name: str) -> Versions:
        """The versions of a model.

        Raises:
          NotFoundError: when it is not served.
        """
        if name not in self._models:
            raise NotFoundError(f"Servable not found for request: Latest({name})")
        return self._models[name]

    def find(self, name: str, number: int | None = None, label: str | None = None) -> Version:
        """A version of a model to answer a request.

        Raises:
          NotFoundError: when it is not served.
        """
        return self.named(name).find(number, label)

    def states_of(
        self, name: str, number: int | None = None, label: str | None = None
    ) -> dict[int, tuple[str, str]]:
        """The states of a model's versions; of all unless one is named.

        Raises:
          NotFoundError: when there is none.
        """
        if name not in self._models:
            raise NotFoundError(f"Could not find any versions of model {name}")
        return self._models[name].states_of(number, label)

    def has(self, name: str) -> bool:
        """Whether a model is known."""
        return name in self._models

    def batches(self) -> dict[str, tuple[int, int]]:
        """How often each model was run for batches, and how many rows these had."""
        return {name: versions.batches() for name, versions in self._models.items()}

    async def refresh(self) -> None:
        """Reads the file if it changed, and looks at all folders.

        A file that cannot be read any more changes nothing.
        """
        if self._file is not None:
            try:
                content = await asyncio.to_thread(self._file.read_text)
                if content != self._read:
                    self._read = content
                    await self._reconfigure(configured(content, self.settings))
            except (OSError, UnicodeError, InvalidArgumentError) as error:
                _log.warning("%s: %s", self._file, error)
        for versions in list(self._models.values()):
            try:
                await versions.refresh()
            except OSError as error:
                _log.warning("%s: %s", versions.name, error)

    async def watch(self) -> None:
        """Looks again and again."""
        while True:
            await asyncio.sleep(self.settings.poll)
            await self.refresh()
