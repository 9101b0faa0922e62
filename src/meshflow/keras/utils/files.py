"""Downloads of files into a cache, with checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from meshflow.environment.types import StrPath
from meshflow.files.atomic_writes import replace_file
from meshflow.files.extraction import extract_archive
from meshflow.files.paths import is_remote, to_path_string
from meshflow.keras.engine.training.progress_bar import Progbar


def get_cache_folder() -> Path:
    """Return the cache folder: `KERAS_HOME`, or `meshflow` in the user's cache folder."""
    home = os.environ.get("KERAS_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshflow"


def compute_file_hash(path: Path, algorithm: str) -> str:
    """Compute the checksum of a file in hexadecimal."""
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
    archive_format: object = "auto",
    cache_dir: StrPath | None = None,
) -> str:
    """Download a file unless it is in the cache.

    Args:
      fname: Name in the cache; the last part of the URL by default.
      origin: URL.
      untar: Whether to unpack a tar file.
      md5_hash: Expected MD5 checksum.
      file_hash: Expected checksum.
      cache_subdir: Folder in the cache.
      hash_algorithm: 'sha256', 'md5', or 'auto' (by the length of `file_hash`).
      extract: Whether to unpack an archive.
      archive_format: Ignored: the content determines the format.
      cache_dir: Cache; by default `KERAS_HOME` or the user's cache folder, to which a file in
        `~/.keras` is copied.

    Returns:
      Path of the file (without '.tar.gz' when it was untarred).

    Raises:
      ValueError: If there is no URL, the checksum differs, `cache_dir` is in a store, or the archive
        has a link or a path that leads out of the cache.
      ResourceExhaustedError: If the archive expands to more than 256 MiB, or 20 times its size if that
        is more; the environment variable MESHFLOW_MAX_UNPACKED_BYTES sets another limit.
      OSError: If the download fails; the message has the URL and the cache folder.

    Example:
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
    cache_path = cache_dir or os.environ.get("KERAS_HOME") or ""
    if is_remote(cache_path):
        raise ValueError(
            f"cache_dir={to_path_string(cache_path)!r} is in a store, but files are downloaded to the local disk. Copy them with tf.io.gfile.copy."
        )
    folder = (Path(to_path_string(cache_dir)) if cache_dir else get_cache_folder()) / cache_subdir
    name = fname or Path(origin).name
    expected = file_hash or md5_hash
    algorithm = hash_algorithm
    if algorithm == "auto":
        algorithm = "sha256" if expected and len(expected) == 64 else "md5"
    folder.mkdir(parents=True, exist_ok=True)
    file_name = f"{name}.tar.gz" if untar and not name.endswith(".tar.gz") else name
    target = folder / file_name
    if not target.exists() and not cache_dir:
        _copy_from_keras_cache(Path.home() / ".keras" / cache_subdir / file_name, target)
    if not target.exists() or (expected and compute_file_hash(target, algorithm) != expected):
        _download(origin, target)
        if expected and compute_file_hash(target, algorithm) != expected:
            raise ValueError(
                f"Incomplete or corrupted file detected: the {algorithm} checksum of {target} (from {origin}) does not match {expected}. Delete it and try again."
            )
    if untar or extract:
        extract_archive(target, folder)
        return str(folder / name.removesuffix(".tar.gz")) if untar else str(target)
    return str(target)


def _copy_from_keras_cache(source: Path, target: Path) -> None:
    """Copy a file that Keras downloaded before."""
    if source.exists() and source != target:
        with open(source, "rb") as file, replace_file(target) as copy:
            shutil.copyfileobj(file, copy)


def _download(url: str, target: Path) -> None:
    print(f"Downloading data from {url}")
    try:
        with urllib.request.urlopen(url, timeout=60) as response, replace_file(target) as out:
            size = int(response.headers.get("Content-Length") or 0) or None
            bar = Progbar(size, unit_name="byte")
            num_bytes = 0
            for block in iter(lambda: response.read(1 << 16), b""):
                out.write(block)
                num_bytes += len(block)
                bar.update(num_bytes, finalize=False)
            bar.update(num_bytes, finalize=True)
    except (urllib.error.URLError, OSError, TimeoutError) as error:
        raise OSError(
            f"Could not download {url}: {error}. Without network access, put the file at {target} yourself (cache folder {target.parent})."
        ) from error
