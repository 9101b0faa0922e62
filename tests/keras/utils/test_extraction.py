"""`get_file(extract=True)` writes regular files inside of its folder only, up to a limit."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

import meshflow as tf
from meshflow.files import extraction


def get(folder, name, **arguments):
    """Unpack an archive that is in the cache already."""
    origin = (folder / name).as_uri()
    return tf.keras.utils.get_file(
        name, origin, cache_dir=folder, cache_subdir="c", **{"extract": True} | arguments
    )


def make_tar(folder, members, mode="w:gz", name="a.tar.gz"):
    """Write members: (name, content), or a `TarInfo` for a special file."""
    (folder / "c").mkdir(exist_ok=True)
    with tarfile.open(folder / "c" / name, mode, format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o755
                tar.addfile(info, io.BytesIO(member[1]))


def make_special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def make_zip(folder, members, name="a.zip"):
    (folder / "c").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "c" / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_files(tmp_path, mode):
    make_tar(tmp_path, [("d/x.sh", b"tea"), ("y" * 150, b"2"), ("e", b"")], mode, "a.tar")
    get(tmp_path, "a.tar")
    folder = tmp_path / "c"
    assert (folder / "d" / "x.sh").read_bytes() == b"tea" and (folder / ("y" * 150)).exists()
    assert os.access(folder / "d" / "x.sh", os.X_OK)
    make_tar(tmp_path, [("d/x.sh", b"new")], mode, "a.tar")
    get(tmp_path, "a.tar", extract=False, untar=False)
    get(tmp_path, "a.tar")
    assert (folder / "d" / "x.sh").read_bytes() == b"new"


def test_zip_files_and_other_files(tmp_path):
    make_zip(tmp_path, [("d/", ""), ("d/x.txt", "tea")])
    get(tmp_path, "a.zip")
    assert (tmp_path / "c" / "d" / "x.txt").read_text() == "tea"
    (tmp_path / "c" / "plain.txt").write_text("tea")
    assert os.path.basename(get(tmp_path, "plain.txt")) == "plain.txt"


def make_long_chain():
    """Return members that, as links, lead out of the folder by a path longer than PATH_MAX (CVE-2025-4517)."""
    component, path, members = "d" * 247, "", []
    for letter in "abcdefghijklmnop":
        members.append(make_special(path + component, tarfile.DIRTYPE))
        members.append(make_special(path + letter, tarfile.SYMTYPE, component))
        path += component + "/"
    link = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    members.append(make_special(link, tarfile.SYMTYPE, "../" * 16))
    members.append(make_special("escape", tarfile.SYMTYPE, link + "/../../.."))
    return [*members, ("escape/planted", b"x")]


ATTACKS = {
    "long chain of links": make_long_chain(),
    "link": [make_special("x", tarfile.SYMTYPE, "/etc")],
    "inner link": [("y", b""), make_special("x", tarfile.SYMTYPE, "y")],
    "hard link": [("y", b""), make_special("x", tarfile.LNKTYPE, "y")],
    "pipe": [make_special("x", tarfile.FIFOTYPE)],
    "device": [make_special("x", tarfile.CHRTYPE)],
    "parent": [("../x", b"x")],
    "absolute": [("/tmp/meshflow-x", b"x")],
    "inner parent": [("d/../../x", b"x")],
    "backslashes": [("..\\..\\x", b"x")],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_members_outside_of_the_folder(tmp_path, name):
    """They are refused before anything is written."""
    folder = tmp_path / "cache"
    folder.mkdir()
    make_tar(folder, [("first", b"x"), *ATTACKS[name]])
    with pytest.raises(ValueError, match=r"a\.tar\.gz holds"):
        get(folder, "a.tar.gz")
    assert os.listdir(folder / "c") == ["a.tar.gz"] and os.listdir(tmp_path) == ["cache"]
    zipped = [(m[0], m[1]) for m in ATTACKS[name] if not isinstance(m, tarfile.TarInfo)]
    if ".." in str(zipped) or name == "absolute":
        make_zip(folder, zipped)
        with pytest.raises(ValueError, match="outside"):
            get(folder, "a.zip")


def test_links_that_exist_are_not_written_through(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    make_tar(folder, [("d/x", b"x")])
    os.symlink(tmp_path, folder / "c" / "d")
    with pytest.raises(ValueError, match="outside"):
        get(folder, "a.tar.gz")
    make_tar(folder, [("e", b"x")])
    os.symlink(folder / "c" / "f", folder / "c" / "e")
    with pytest.raises(ValueError, match="through the link"):
        get(folder, "a.tar.gz")


def test_links_in_zip_files(tmp_path):
    info = zipfile.ZipInfo("x")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    make_zip(tmp_path, [(info, "/etc/passwd")])
    with pytest.raises(ValueError, match="is a link"):
        get(tmp_path, "a.zip")


def test_archives_that_expand(tmp_path, monkeypatch):
    """Test that an archive of 1 MB cannot expand to 1 GB (here 50 kB to 9 MB), and that nothing is
    written."""
    assert extraction._MIN_EXTRACTED_BYTES == 256 << 20
    monkeypatch.setattr(extraction, "_MIN_EXTRACTED_BYTES", 8 << 20)

    class Zeros(io.RawIOBase):
        def read(self, size=-1):
            return bytes(size)

    (tmp_path / "c").mkdir()
    info = tarfile.TarInfo("x")
    info.size = 9 << 20
    with tarfile.open(tmp_path / "c" / "a.tar.xz", "w:xz", preset=0) as tar:
        tar.addfile(info, Zeros())
    with pytest.raises(tf.errors.ResourceExhaustedError, match="MESHFLOW_MAX_UNPACKED_BYTES"):
        get(tmp_path, "a.tar.xz")
    with zipfile.ZipFile(tmp_path / "c" / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(30):
            archive.writestr(str(index), bytes(300 << 10))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="more than 8,388,608 bytes"):
        get(tmp_path, "a.zip")
    sparse = tarfile.TarInfo("hole")
    sparse.type = tarfile.GNUTYPE_SPARSE
    make_tar(tmp_path, [sparse])
    with pytest.raises((ValueError, tf.errors.DataLossError)):
        get(tmp_path, "a.tar.gz")
    assert sorted(os.listdir(tmp_path / "c")) == ["a.tar.gz", "a.tar.xz", "a.zip"]


def test_a_larger_limit_can_be_set(tmp_path, monkeypatch):
    make_zip(tmp_path, [("x", "tea" * 1000)])
    monkeypatch.setenv("MESHFLOW_MAX_UNPACKED_BYTES", "2000")
    with pytest.raises(tf.errors.ResourceExhaustedError):
        get(tmp_path, "a.zip")
    monkeypatch.setenv("MESHFLOW_MAX_UNPACKED_BYTES", "1e4")
    get(tmp_path, "a.zip")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_damaged_archives(tmp_path, name):
    members = [("x", os.urandom(5000)), ("y", os.urandom(5000))]
    make_tar(tmp_path, members) if name != "a.zip" else make_zip(tmp_path, members)
    content = bytearray((tmp_path / "c" / name).read_bytes())
    for offset in range(1500, 9000, 1500):
        damaged = content[:]
        damaged[offset] ^= 255
        (tmp_path / "c" / name).write_bytes(damaged)
        try:
            get(tmp_path, name)
        except (tf.errors.DataLossError, ValueError) as error:
            assert name in str(error)
