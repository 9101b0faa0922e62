"""Downloading files once, with a check of their content."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from meshflow.files.paths import is_remote, text
from meshflow.files.replacing import replacing
from meshflow.keras.engine.training.progress_bar import Progbar


def cache_folder() -> Path:
    """Where downloads are kept: `KERAS_HOME`, else `meshflow` in the user's cache folder."""
    home = os.environ.get("KERAS_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshflow"


def file_hash(path: Path, algorithm: str) -> str:
    """Checksum of a file in hexadecimal."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def get_file(
    fname: str | None = None,
    origin: str | None = None,
    untar: bool = False,
    md5_hash: str | None = None,
    file_hash: str | None = None,
    cache_subdir: str = "datasets",
    hash_algorithm: str = "auto",
    extract: bool = False,
    archive_format: Any = "auto",
    cache_dir: Any = None,
) -> str:
    """Downloads a file unless it is in the cache already.

    Args:
      fname: name in the cache; default the last part of the URL.
      origin: the URL.
      untar: whether to unpack a tar file.
      md5_hash: expected MD5 checksum.
      file_hash: expected checksum.
      cache_subdir: folder in the cache.
      hash_algorithm: 'sha256', 'md5', or 'auto' (by the length of `file_hash`).
      extract: whether to unpack an archive.
      archive_format: accepted; recognized from the content.
      cache_dir: the cache; default `KERAS_HOME` or the user's cache folder, into which a file is copied that
        Keras has in `~/.keras` already.

    Returns:
      Path of the file (without '.tar.gz' when it was untarred).

    Raises:
      ValueError: when no URL is given, the checksum differs, or `cache_dir` is in a store.
      OSError: when the download fails, naming URL and cache folder.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     cached = os.path.join(folder, "datasets", "words.txt")
      ...     _ = tf.io.write_file(cached, "one two")
      ...     url = "https://example.org/words.txt"
      ...     tf.keras.utils.get_file("words.txt", url, cache_dir=folder) == cached
      True
    """
    if origin is None:
        raise ValueError("Please specify the `origin` argument (URL of the file to download).")
    place = cache_dir or os.environ.get("KERAS_HOME") or ""
    if is_remote(place):
        raise ValueError(
            f"cache_dir={text(place)!r} is in a store: files are downloaded to this machine's disk. Copy them with tf.io.gfile.copy."
        )
    folder = (Path(text(cache_dir)) if cache_dir else cache_folder()) / cache_subdir
    name = fname or Path(origin).name
    expected = file_hash or md5_hash
    algorithm = hash_algorithm
    if algorithm == "auto":
        algorithm = "sha256" if expected and len(expected) == 64 else "md5"
    folder.mkdir(parents=True, exist_ok=True)
    stored = f"{name}.tar.gz" if untar and not name.endswith(".tar.gz") else name
    target = folder / stored
    if not target.exists() and not cache_dir:
        _take_from_keras(Path.home() / ".keras" / cache_subdir / stored, target)
    if not target.exists() or (expected and _hash(target, algorithm) != expected):
        _download(origin, target)
        if expected and _hash(target, algorithm) != expected:
            raise ValueError(
                f"Incomplete or corrupted file detected: the {algorithm} checksum of {target} (from {origin}) does not match {expected}. Delete it and try again."
            )
    if untar or extract:
        _unpack(target, folder)
        return str(folder / name.removesuffix(".tar.gz")) if untar else str(target)
    return str(target)


_hash = file_hash


def _take_from_keras(source: Path, target: Path) -> None:
    """Takes over what Keras has downloaded before."""
    if source.exists() and source != target:
        with open(source, "rb") as file, replacing(target) as copy:
            shutil.copyfileobj(file, copy)


def _download(url: str, target: Path) -> None:
    print(f"Downloading data from {url}")
    try:
        with urllib.request.urlopen(url, timeout=60) as response, replacing(target) as out:
            size = int(response.headers.get("Content-Length") or 0) or None
            bar = Progbar(size, unit_name="byte")
            done = 0
            for block in iter(lambda: response.read(1 << 16), b""):
                out.write(block)
                done += len(block)
                bar.update(done, finalize=False)
            bar.update(done, finalize=True)
    except (urllib.error.URLError, OSError, TimeoutError) as error:
        raise OSError(
            f"Could not download {url}: {error}. Without network access, put the file at {target} yourself (cache folder {target.parent})."
        ) from error


def _unpack(path: Path, folder: Path) -> None:
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                inside = (folder / member).resolve()
                if not inside.is_relative_to(folder.resolve()):
                    raise ValueError(
                        f"{path} holds {member!r}, which would be written outside {folder}."
                    )
            archive.extractall(folder)
    else:
        shutil.copy(path, folder / path.name)
