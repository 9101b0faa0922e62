"""Models of a server: a single one, or those in a configuration file of TensorFlow Serving."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format

from meshflow.core.runtime.errors import InvalidArgumentError, NotFoundError
from meshflow.environment.types import StrPath
from meshflow.serving.messages import ModelServerConfig
from meshflow.serving.versions import ModelVersions, Settings, Version

_log = logging.getLogger("meshflow")


def parse_model_configs(content: str, settings: Settings) -> dict[str, tuple[str, Settings]]:
    """Return the folder and the settings of each model by name.

    Args:
      content: Text-format `ModelServerConfig` with a `model_config_list`.
      settings: Settings that the configuration does not override.

    Raises:
      InvalidArgumentError: The configuration is invalid.

    Example:
      >>> text = "model_config_list { config { name: 'digits' base_path: '/models/digits' } }"
      >>> parse_model_configs(text, Settings())["digits"][0]
      '/models/digits'
    """
    try:
        entries = text_format.Parse(content, ModelServerConfig()).model_config_list.config
    except (text_format.ParseError, UnicodeError) as error:
        raise InvalidArgumentError(f"The model configuration cannot be read: {error}") from None
    configs: dict[str, tuple[str, Settings]] = {}
    for entry in entries:
        if not entry.name or not entry.base_path:
            raise InvalidArgumentError(
                f"The model configuration has a model without a name or base_path: {entry}"
            )
        if entry.name in configs:
            raise InvalidArgumentError(f"The model configuration lists {entry.name!r} twice.")
        if entry.model_platform not in ("", "tensorflow"):
            raise InvalidArgumentError(
                f"The model {entry.name!r} has the platform {entry.model_platform!r}, expected 'tensorflow'."
            )
        policy = entry.model_version_policy
        policy_name = policy.WhichOneof("kind")
        keep = settings.keep
        if policy_name in ("all", "latest"):
            keep = 0 if policy_name == "all" else policy.latest.num_versions or 1
        model_settings = dataclasses.replace(
            settings,
            keep=keep,
            versions=tuple(policy.specific.versions),
            labels={**settings.labels, **entry.version_labels},
        )
        configs[entry.name] = entry.base_path, model_settings
    if not configs:
        raise InvalidArgumentError("The model configuration lists no model in model_config_list.")
    return configs


class Models:
    """Served models by name.

    Args:
      configs: Folders and settings by name.
      file: Configuration file that replaces `configs` and is reloaded when it changes, or None.
      settings: Settings that the file does not override.
    """

    def __init__(
        self,
        configs: Mapping[str, tuple[StrPath, Settings]],
        file: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._file, self._file_content = file, ""
        self._models: dict[str, ModelVersions] = {}
        if file is not None:
            self._file_content = file.read_text()
            configs = parse_model_configs(self._file_content, self.settings)
        for name, (folder, model_settings) in configs.items():
            self._models[name] = ModelVersions(name, folder, model_settings)

    async def _reconfigure(self, configs: Mapping[str, tuple[StrPath, Settings]]) -> None:
        """Replace the models by those of a changed file."""
        for name in [n for n in self._models if n not in configs]:
            self._models.pop(name).close()
            _log.info("%s is no longer served", name)
        for name, (folder, settings) in configs.items():
            current = self._models.get(name)
            if current is not None and current.folder == Path(folder):
                current.settings = settings
                continue
            loaded = ModelVersions(name, folder, settings)
            # The old model answers requests until the model in the new folder is loaded.
            await loaded.refresh()
            self._models[name] = loaded

    def get_versions(self, name: str) -> ModelVersions:
        """Return the versions of a model.

        Raises:
          NotFoundError: The model is not served.
        """
        if name not in self._models:
            raise NotFoundError(f"Servable not found for request: Latest({name})")
        return self._models[name]

    def find(self, name: str, number: int | None = None, label: str | None = None) -> Version:
        """Return the version of a model that answers a request.

        Raises:
          NotFoundError: The version is not served.
        """
        return self.get_versions(name).find(number, label)

    def get_states(
        self, name: str, number: int | None = None, label: str | None = None
    ) -> dict[int, tuple[str, str]]:
        """Return the states of all versions of a model, or of one version.

        Raises:
          NotFoundError: The model has no such version.
        """
        if name not in self._models:
            raise NotFoundError(f"Could not find any versions of model {name}")
        return self._models[name].get_states(number, label)

    def has_model(self, name: str) -> bool:
        """Check whether a model is served."""
        return name in self._models

    def count_batches(self) -> dict[str, tuple[int, int]]:
        """Return the number of calls and of rows in batches of each model."""
        return {name: versions.count_batches() for name, versions in self._models.items()}

    def count_busy_seconds(self) -> dict[str, float]:
        """Return the time for which the longest current call of each model has been running."""
        return {name: versions.count_busy_seconds() for name, versions in self._models.items()}

    def describe_health(self) -> dict[str, str]:
        """Return the problem of each model that cannot answer requests now."""
        problems = {}
        for name, versions in self._models.items():
            busy_seconds = versions.count_busy_seconds()
            if not versions.available:
                problems[name] = "no version is available"
            elif busy_seconds > versions.settings.deadline:
                problems[name] = f"a call has been running for {busy_seconds:.0f} s"
        return problems

    async def refresh(self) -> None:
        """Reload the configuration file if it changed, and check all folders for new versions.

        If the file became invalid, the models are kept.
        """
        if self._file is not None:
            try:
                content = await asyncio.to_thread(self._file.read_text)
                if content != self._file_content:
                    self._file_content = content
                    await self._reconfigure(parse_model_configs(content, self.settings))
            except (OSError, UnicodeError, InvalidArgumentError) as error:
                _log.warning("%s: %s", self._file, error)
        for versions in list(self._models.values()):
            try:
                await versions.refresh()
            except OSError as error:
                _log.warning("%s: %s", versions.name, error)

    async def watch(self) -> None:
        """Refresh the models periodically."""
        while True:
            await asyncio.sleep(self.settings.poll)
            await self.refresh()
