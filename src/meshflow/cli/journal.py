"""`meshflow journal`: inspect the journals of parameter servers, and recover damaged ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from meshflow.distribute.parameter_server.server.journal import JournalFiles
from meshflow.distribute.parameter_server.server.record_files import (
    DamagedFileError,
    FileRecord,
    pack_header,
    pack_record,
)
from meshflow.files.paths import translate_errors

app = typer.Typer(
    help="Check the journals of parameter servers, and recover the valid records of damaged ones.",
    no_args_is_help=True,
)
_SourceArgument = Annotated[
    Path, typer.Argument(help="Folder of a server's journal, or a folder of such folders.")
]


@app.command()
def show(source: _SourceArgument) -> None:
    """Show the files and the numbers of records of journals, and check all checksums.

    The contents of the records, which are pickles, are not loaded. The exit code is 1 if a file is
    damaged.
    """
    is_valid = True
    for folder in _find_journals(source):
        try:
            for line in _describe_journal(folder):
                typer.echo(line)
        except DamagedFileError as error:
            typer.echo(str(error))
            is_valid = False
    raise typer.Exit(not is_valid)


@app.command()
def recover(
    source: _SourceArgument,
    target: Annotated[Path, typer.Argument(help="New folder for the recovered journals.")],
) -> None:
    """Copy the snapshot and the records before the first damaged one to a new journal."""
    if target.exists():
        raise typer.BadParameter(f"{target} exists already; choose a new folder.")
    for folder in _find_journals(source):
        new_folder = target / folder.relative_to(source)
        files = JournalFiles(folder)
        try:
            snapshot = files.read_snapshot()
        except DamagedFileError as error:
            sys.exit(f"{error}\nNothing can be recovered, because the logs need this snapshot.")
        count = 0
        for kind, generation, record in _iterate_valid_records(files, snapshot):
            path = str(new_folder / f"{kind}.{generation}")
            buffers = [array.data for array in record.arrays]
            parts = pack_record(record.index, record.body, buffers)
            if record.index == 0:
                parts.insert(0, memoryview(pack_header(kind, generation)))
            else:
                # The first record of a file is the snapshot, or describes a log.
                count += 1
            with translate_errors(path):
                new_folder.mkdir(parents=True, exist_ok=True)
                with open(path, "ab") as file:
                    file.writelines(parts)
        state = "a snapshot and " if snapshot is not None else ""
        typer.echo(f"{new_folder}: recovered {state}{count} records")


def _find_journals(source: Path) -> list[Path]:
    """Return the folders of journals: `source`, or the folders in it with a journal."""
    if not source.is_dir():
        raise typer.BadParameter(f"{source} is not a folder.")
    folders = sorted({file.parent for file in source.rglob("log.*")})
    if not folders:
        raise typer.BadParameter(f"{source} contains no journal, which would have files log.N.")
    return folders


def _describe_journal(folder: Path) -> Iterator[str]:
    files = JournalFiles(folder)
    snapshot = files.read_snapshot()
    if snapshot is not None:
        yield f"{files.get_path('snapshot', files.snapshot)}: {snapshot.end:,} bytes"
    counts = dict.fromkeys(files.logs, (0, 0))
    try:
        for generation, record in files.read_logs():
            counts[generation] = record.index, record.end
    finally:
        for generation, (count, size) in counts.items():
            yield f"{files.get_path('log', generation)}: {count:,} records, {size:,} bytes"


def _iterate_valid_records(
    files: JournalFiles, snapshot: FileRecord | None
) -> Iterator[tuple[str, int, FileRecord]]:
    """Yield the records before the first damaged one, each with the kind and generation of its file."""
    if snapshot is not None:
        yield "snapshot", files.snapshot, snapshot
    try:
        for generation, record in files.read_logs():
            yield "log", generation, record
    except DamagedFileError as error:
        typer.echo(str(error))
