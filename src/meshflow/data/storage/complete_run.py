"""Atomic replacement of a folder of files.

A run is a folder of files that are written once. A pointer file names the complete run. It is
replaced after all files of a new run are written, and earlier runs are deleted afterwards, so a
process that is killed at any time leaves a complete run. This also works in object stores, which
cannot rename files.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment.json_documents import compute_json_checksum, parse_json
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_contained
from meshflow.files.part_files import delete_abandoned_parts, make_part_name
from meshflow.files.paths import is_remote, to_path_string

_RUN = re.compile(r"run-[0-9a-f]{16}")


class RunFolder:
    """The runs in a folder.

    Args:
      folder: Path of the folder.
      pointer: Name of the file that names the complete run.
    """

    def __init__(self, folder: StrPath, pointer: str) -> None:
        self.folder = to_path_string(folder)
        self.pointer = gfile.join(self.folder, pointer)

    def read_metadata(self) -> dict[str, Any] | None:
        """Return the content of the pointer file, None if the file does not exist.

        Raises:
          DataLossError: If the file is damaged; the message names it.
        """
        if not gfile.exists(self.pointer):
            return None
        with gfile.GFile(check_contained(self.pointer, self.folder), "rb") as file:
            content = file.read()
        try:
            metadata = parse_json(content)
            checksum = metadata.pop("crc32")
            is_valid = checksum == compute_json_checksum(metadata) and _RUN.fullmatch(
                metadata["run"]
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise DataLossError(f"{self.pointer} is damaged, or of an older version.")
        return metadata

    def get_path(self, metadata: dict[str, Any]) -> str:
        """Return the path of the folder of a run.

        Args:
          metadata: Content of the pointer file.
        """
        return gfile.join(self.folder, metadata["run"])

    def create_run(self) -> tuple[str, str]:
        """Create a new run.

        Returns:
          The name of the run, and the folder to which its files are written.
        """
        run = f"run-{uuid.uuid4().hex[:16]}"
        final = gfile.join(self.folder, run)
        # In a file system that can rename folders, a run gets its final name when it is complete.
        folder = final if is_remote(final) else make_part_name(gfile.join(self.folder, "run"))
        if not is_remote(final):
            gfile.makedirs(self.folder)
            delete_abandoned_parts(gfile.join(self.folder, "run"))
        gfile.makedirs(folder)
        return run, folder

    def publish(self, run: str, folder: str, metadata: dict[str, Any]) -> None:
        """Make a run the complete one, and delete all others.

        Args:
          run: Name of the run.
          folder: Folder to which its files were written.
          metadata: Content of the pointer file, JSON values.
        """
        final = gfile.join(self.folder, run)
        if folder != final:
            gfile.rename(folder, final)
        content = {**metadata, "run": run}
        with replace_file(self.pointer, "w") as file:
            json.dump({**content, "crc32": compute_json_checksum(content)}, file)
        for name in gfile.listdir(self.folder):
            if _RUN.fullmatch(name) and name != run:
                gfile.rmtree(gfile.join(self.folder, name))

    def delete_incomplete(self, folder: str) -> None:
        """Delete the files of a run that was not completed."""
        if gfile.exists(folder):
            gfile.rmtree(folder)
