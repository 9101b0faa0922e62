"""The folder of compiled programs is bounded."""

import atexit
import os

import jax

from meshflow.core.runtime import compilation_cache


def add_program(folder, name, size, used):
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (used, used))


def test_least_recently_used_programs_are_evicted(tmp_path):
    for i, name in enumerate(("c-cache", "a-cache", "b-cache")):
        add_program(tmp_path, name, 100, 1000 + i)
    add_program(tmp_path, "notes.txt", 1000, 0)
    # Written first, used last.
    os.utime(tmp_path / "c-cache", (5000, 1000))
    compilation_cache.remove_old_entries(str(tmp_path), 250)
    assert {p.name for p in tmp_path.iterdir()} == {"c-cache", "b-cache", "notes.txt"}
    compilation_cache.remove_old_entries(str(tmp_path), 250)
    assert len(list(tmp_path.iterdir())) == 3
    compilation_cache.remove_old_entries(str(tmp_path / "none"), 1)


def test_cache_is_trimmed_at_process_exit(tmp_path, monkeypatch):
    registered = []
    monkeypatch.setattr(atexit, "register", lambda *call: registered.append(call))
    monkeypatch.setenv("MESHFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MESHFLOW_CACHE_BYTES", "150")
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.enable_cache()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    ((at_end, *arguments),) = registered
    for i in range(3):
        add_program(tmp_path, f"{i}-cache", 100, 1000 + i)
    # A folder has this modification time after a change.
    os.utime(tmp_path, (9000, 9000))
    at_end(*arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["2-cache"]
    add_program(tmp_path, "3-cache", 100, 2000)
    at_end(arguments[0], tmp_path.stat().st_mtime, arguments[2])
    assert len(list(tmp_path.iterdir())) == 2


def test_short_entries_about_programs_count_as_blocks(tmp_path):
    for index in range(5):
        path = tmp_path / f"{index}{compilation_cache.PROGRAM_SUFFIX}"
        path.write_bytes(b"digest")
        os.utime(path, (index, index))
    compilation_cache.remove_old_entries(str(tmp_path), 2 * 4096)
    assert sorted(p.name[0] for p in tmp_path.iterdir()) == ["3", "4"]
