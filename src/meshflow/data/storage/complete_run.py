"""A folder in which one file names the run that is whole.

A run is a folder of files that are written once. The file that names it is replaced when they are all there, and
only then are earlier runs deleted: whoever is killed, at whatever moment, leaves the old run or the new one. Works
in stores that know no renaming, too.
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from typing import Any

from meshflow.core.runtime.errors import DataLossError
from meshflow.files import gfile
from meshflow.files.parts import clear_parts, part_name
from meshflow.files.paths import is_remote, text
from meshflow.files.replacing import replacing

_RUN = re.compile(r"run-[0-9a-f]{16}")


class Runs:
    """The runs of a folder.

    Args:
      folder: its path.
      pointer: name of the file that names the run.
    """

    def __init__(self, folder: Any, pointer: str) -> None:
        self.folder = text(folder)
        self.pointer = gfile.join(self.folder, pointer)

    def known(self) -> dict[str, Any] | None:
        """What the file says; None without a file.

        Raises:
          DataLossError: naming the file, when it is damaged.
        """
        if not gfile.exists(self.pointer):
            return None
        with gfile.GFile(self.pointer, "rb") as file:
            content = file.read()
        try:
            known = json.loads(content)
            check = known.pop("crc32")
            whole = check == _checksum(known) and _RUN.fullmatch(known["run"])
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise DataLossError(f"{self.pointer} is damaged, or of an older version.")
        return known

    def path(self, known: dict[str, Any]) -> str:
        """Where the files of a run are."""
        return gfile.join(self.folder, known["run"])

    def begin(self) -> tuple[str, str]:
        """A new run's name, and the folder for its files."""
        run = f"run-{uuid.uuid4().hex[:16]}"
        final = gfile.join(self.folder, run)
        # A run has its name when it is whole, where folders can be renamed.
        place = final if is_remote(final) else part_name(gfile.join(self.folder, "run"))
        if not is_remote(final):
            gfile.makedirs(self.folder)
            clear_parts(gfile.join(self.folder, "run"))
        gfile.makedirs(place)
        return run, place

    def publish(self, run: str, place: str, known: dict[str, Any]) -> None:
        """Makes a run the one that is whole, and deletes the others.

        Args:
          run: its name.
          place: the folder that its files were written to.
          known: what the file says of it, plain JSON values.
        """
        final = gfile.join(self.folder, run)
        if place != final:
            gfile.rename(place, final)
        content = {**known, "run": run}
        with replacing(self.pointer, "w") as file:
            json.dump({**content, "crc32": _checksum(content)}, file)
        for name in gfile.listdir(self.folder):
            if _RUN.fullmatch(name) and name != run:
                gfile.rmtree(gfile.join(self.folder, name))

    def discard(self, place: str) -> None:
        """Deletes the files of a run that did not become whole."""
        if gfile.exists(place):
            gfile.rmtree(place)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
