"""Test files and folders that are either complete or missing."""

import os
import subprocess
import sys

import fsspec
import pytest

import meshflow as tf
import stores
from killing import check_kills
from meshflow.files import atomic_writes, gfile, part_files
from meshflow.files.atomic_writes import find_folder, replace_folder

PLACES = ["disk", "store"]


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """A folder on the disk, and one in a store."""
    if request.param == "disk":
        return str(tmp_path)
    return stores.memory()


def read(path):
    with gfile.GFile(path) as file:
        return file.read()


def fill(folder, **texts):
    with replace_folder(folder, "last") as part:
        for name, content in texts.items():
            with atomic_writes.replace_file(gfile.join(part, name), "w") as file:
                file.write(content)


def test_file_is_replaced_only_when_complete(place):
    path = gfile.join(place, "new", "a.txt")
    for content in ("old", "één"):
        with atomic_writes.replace_file(path, "w") as file:
            file.write(content)
    assert read(path) == "één" and gfile.listdir(gfile.join(place, "new")) == ["a.txt"]
    with pytest.raises(KeyError), atomic_writes.replace_file(path) as file:
        file.write(b"half")
        raise KeyError
    assert read(path) == "één" and gfile.listdir(gfile.join(place, "new")) == ["a.txt"]


def test_folder_is_replaced_only_when_complete(place):
    path = gfile.join(place, "new", "folder")
    fill(path, a="1", b="2", last="1")
    fill(path, a="3", last="2")
    assert find_folder(path, "last") == path
    assert sorted(gfile.listdir(path)) == ["a", "last"] and read(gfile.join(path, "a")) == "3"
    with pytest.raises(KeyError), replace_folder(path, "last") as part:
        with atomic_writes.replace_file(gfile.join(part, "a"), "w") as file:
            file.write("half")
        raise KeyError
    assert gfile.listdir(gfile.join(place, "new")) == ["folder"]
    assert sorted(gfile.listdir(path)) == ["a", "last"] and read(gfile.join(path, "a")) == "3"


def test_a_folder_given_its_name_by_another_process_meanwhile(tmp_path, monkeypatch):
    path = str(tmp_path / "folder")
    fill(path, a="1", last="1")
    real, others = os.replace, [2]

    def met(source, target):
        real(source, target)
        if target.endswith(".meshflow.old") and others[0]:
            others[0] -= 1
            os.mkdir(path)
            (tmp_path / "folder" / "last").write_text("another")

    monkeypatch.setattr(os, "replace", met)
    fill(path, a="2", last="2")
    assert read(f"{path}/last") == "2" and os.listdir(tmp_path) == ["folder"]


def test_only_files_of_the_writer_are_replaced(place):
    path = gfile.join(place, "folder")
    mine = lambda folder: {"a", "b", "last"}

    def write(**texts):
        with replace_folder(path, "last", mine) as part:
            for name, content in texts.items():
                with atomic_writes.write_flushed(gfile.join(part, name)) as file:
                    file.write(content.encode())

    for name in ("folder/notes/1.txt", "folder/b.txt", "folder.old", "folder.new"):
        tf.io.write_file(gfile.join(place, name), "tea")
    write(a="1", b="1", last="1")
    write(a="2", last="2")
    assert sorted(gfile.listdir(path)) == ["a", "b.txt", "last", "notes"]
    assert read(f"{path}/notes/1.txt") == read(f"{path}/b.txt") == "tea"
    atomic_writes.delete_folder(path, "last", mine)
    assert sorted(gfile.listdir(path)) == ["b.txt", "notes"]
    assert sorted(gfile.listdir(place)) == ["folder", "folder.new", "folder.old"]


@pytest.mark.parametrize("name", [".", "..", "../..", "absolute"])
def test_a_folder_that_cannot_be_renamed_is_filled_in_place(name, tmp_path, monkeypatch):
    folder = tmp_path / "models"
    below = {"..": folder / "a", "../..": folder / "a" / "b"}.get(name, folder)
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (folder / "notes").write_text("mine")
    path = str(folder) if name == "absolute" else name
    for content in ("old", "new"):
        with replace_folder(path, "last", lambda _: ["last", "b"]) as part:
            for entry in ["last", "b"] if content == "old" else ["last"]:
                with open(os.path.join(part, entry), "w") as file:
                    file.write(content)
    assert {f.name: f.read_text() for f in folder.iterdir() if f.is_file()} == {
        "notes": "mine",
        "last": "new",
    }
    assert os.getcwd() == str(below) and [f.name for f in tmp_path.iterdir()] == ["models"]
    assert not list(folder.rglob("*.part")) and find_folder(path, "last") == path
    with pytest.raises(KeyError), replace_folder(path, "last", lambda _: ["last"]):
        raise KeyError
    assert read("last" if name == "." else str(folder / "last")) == "new"


def test_a_mount_point_is_filled_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
    inode = tmp_path.stat().st_ino
    fill(str(tmp_path), last="1")
    assert tmp_path.stat().st_ino == inode and os.listdir(tmp_path) == ["last"]


@pytest.mark.parametrize(
    "access",
    [
        lambda path: replace_folder(path, "last").__enter__(),
        lambda path: find_folder(path, "last"),
        lambda path: atomic_writes.delete_folder(path, "last"),
        atomic_writes.AtomicFile,
    ],
)
def test_an_empty_path_is_refused(access):
    # It meant the root folder, to which a writer linked all files of the machine.
    with pytest.raises(tf.errors.InvalidArgumentError, match="path is empty"):
        access("")


def test_store_is_complete_throughout_a_replacement(monkeypatch):
    store = fsspec.filesystem("memory")
    bucket = stores.memory()
    path = f"{bucket}/folder"
    fill(path, a="1", b="1", last="1")
    changes = ("rm_file", "cp_file", "rm", "put_file")
    seen = []

    def watched(name):
        real = getattr(type(store), name)

        def call(self, *args, **kwargs):
            result = real(self, *args, **kwargs)
            where = find_folder(path, "last")
            seen.append({n: read(gfile.join(where, n)) for n in ("a", "b", "last")})
            return result

        monkeypatch.setattr(type(store), name, call)

    for name in changes:
        watched(name)
    fill(path, a="2", b="2", last="2")
    assert len(seen) > 8
    assert all(set(content.values()) in ({"1"}, {"2"}) for content in seen)


def test_a_killed_replacement_in_a_store_is_finished_by_the_next(monkeypatch):
    store = fsspec.filesystem("memory")
    bucket = stores.memory()
    path = f"{bucket}/folder"
    fill(path, a="1", last="1")
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "cp_file", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            fill(path, a="2", last="2")
    assert read(gfile.join(find_folder(path, "last"), "a")) == "2"
    with pytest.raises(KeyError), replace_folder(path, "last"):
        raise KeyError
    assert find_folder(path, "last") == path and read(path + "/a") == "2"
    fill(path, a="3", last="3")
    assert read(path + "/a") == "3" and gfile.listdir(bucket) == ["folder"]


def test_parts_of_ended_processes_are_cleared(tmp_path):
    path = str(tmp_path / "a.txt")
    write = "import sys; from meshflow.files import part_files; print(part_files.make_part_name(sys.argv[1]))"
    left = subprocess.run(
        [sys.executable, "-c", write, path], capture_output=True, text=True, check=True
    ).stdout.strip()
    other = left.replace(part_files._get_host_name(), "elsewhere")
    mine = part_files.make_part_name(path)
    for part in (left, other, mine):
        open(part, "w").close()
    with atomic_writes.replace_file(path, "w") as file:
        file.write("new")
    assert not os.path.exists(left)
    assert os.path.exists(other) and os.path.exists(mine)
    os.utime(other, (0, 0))
    part_files.delete_abandoned_parts(path)
    assert sorted(os.listdir(tmp_path)) == sorted(["a.txt", os.path.basename(mine)])


def test_errors_name_the_path(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "a")
    with pytest.raises(tf.errors.OpError, match="file/a"), atomic_writes.replace_file(below):
        pass
    with pytest.raises(tf.errors.UnimplementedError, match="nosuch"):
        gfile.exists("nosuch://bucket/a")
    full = str(tmp_path / "full")
    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match="full; No space"),
        atomic_writes.replace_file(full),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(FileNotFoundError, match="source"), atomic_writes.replace_file(full):
        (tmp_path / "source").read_text()
    assert os.listdir(tmp_path) == ["file"]


def test_glob_returns_paths_with_their_scheme():
    bucket = stores.memory()
    for name in ("b.txt", "a.txt", "c.bin"):
        tf.io.write_file(f"{bucket}/{name}", name)
    assert gfile.glob(f"{bucket}/*.txt") == [f"{bucket}/a.txt", f"{bucket}/b.txt"]
    tf.io.gfile.rename(f"{bucket}/a.txt", f"{bucket}/d.txt")
    assert sorted(gfile.listdir(bucket)) == ["b.txt", "c.bin", "d.txt"]


WRITERS = {
    "a file": """
        from meshflow.files.atomic_writes import replace_file
        def write(path, number):
            with replace_file(path, "w") as file:
                for _ in range(50):
                    file.write(f"{number}\\n" * 20)
        """,
    "a folder": """
        from meshflow.files.atomic_writes import replace_folder
        def write(path, number):
            with replace_folder(path, "last") as part:
                for name in ("a", "b", "last"):
                    with open(f"{part}/{name}", "w") as file:
                        file.write(f"{number}\\n" * 1000)
        """,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_killed_writer_leaves_the_old_or_the_new(kind, tmp_path):
    def numbers(path):
        lines = read(path).splitlines()
        assert len(lines) == 1000
        return set(lines)

    def found(path):
        if kind == "a file":
            (number,) = numbers(path)
        else:
            folder = find_folder(path, "last")
            (number,) = set.union(*(numbers(gfile.join(folder, n)) for n in ("a", "b", "last")))
        return int(number)

    seen = check_kills(WRITERS[kind], tmp_path, found)
    assert seen[False]
