"""Run TensorFlow's own unit tests, unmodified, with Meshflow or TensorFlow.

    python benchmarks/unit_tests.py ops/ragged kernel_tests/array_ops
    python benchmarks/unit_tests.py ops/ragged --python TENSORFLOW_PYTHON --out out/unit-tests-tensorflow.json
    python benchmarks/unit_tests.py --table out/unit-tests-meshflow.json out/unit-tests-tensorflow.json

The names are folders and files below `tensorflow/python` in Debian's source package of TensorFlow 2.14.1, which is
downloaded once. Each test file runs in a process of its own. `unit_tests_plugin` writes the outcome of each test to a
file, so that a time limit keeps those of the finished tests. Outcomes of earlier calls are kept for other files.
"""

import argparse
import collections
import hashlib
import json
import tarfile
import urllib.request
from pathlib import Path

from libraries import add_options, print_messages, run

ARCHIVE = "http://deb.debian.org/debian/pool/main/t/tensorflow/tensorflow_2.14.1%2Bdfsg.orig.tar.xz"
SHA256 = "9dfff0627def4e999f66a80d0fb57fd0651d12d525dcd67d6c24f1e9bca72b93"


def download(root):
    """Download and unpack the source package, and return its folder with `tensorflow/python`."""
    folder = root / "tensorflow-2.14.1"
    if (folder / "complete").exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    archive = root / "tensorflow.tar.xz"
    urllib.request.urlretrieve(ARCHIVE, archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{ARCHIVE} has the SHA-256 checksum {digest} instead of {SHA256}.")
    with tarfile.open(archive) as tar:
        for member in tar:
            # The folder in the archive may have a suffix such as `+dfsg`.
            member.name = "/".join(["tensorflow-2.14.1", *member.name.split("/")[1:]])
            if member.name.startswith("tensorflow-2.14.1/tensorflow/python/"):
                tar.extract(member, root, filter="data")
    (folder / "complete").touch()
    return folder


def find_files(source, names):
    """Return the test files of folders, and other named files."""
    base = source / "tensorflow/python"
    files = []
    for name in names:
        path = base / name
        if not path.exists():
            raise FileNotFoundError(f"tensorflow/python has no file or folder {name}.")
        files += sorted(path.rglob("*_test.py")) if path.is_dir() else [path]
    return list(dict.fromkeys(files))


def measure(file, source, arguments):
    """Run a test file, and return the outcome and the error of each test that ended."""
    journal = arguments.root / "journal.jsonl"
    journal.unlink(missing_ok=True)
    pytest = [
        "-m", "pytest", "-q", "-p", "unit_tests_plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=",
        "--tb=short", "--import-mode=importlib", f"--rootdir={arguments.root}", str(file),
    ]  # fmt: skip
    code, output = run(
        pytest, Path(__file__).parent, arguments.python, arguments.seconds, cwd=arguments.root,
        UNIT_TESTS_SOURCE=str(source), UNIT_TESTS_JOURNAL=str(journal),
    )  # fmt: skip
    records = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        record = json.loads(line)
        if records.get(record["name"], {}).get("outcome") != "failed":
            records[record.pop("name")] = record
    return {"exit_code": code, "output": output[-1000:], "tests": records}


def show_table(files):
    """Print a Markdown table of folders from the outcomes of Meshflow, and of TensorFlow if they are given."""
    meshflow, *others = [json.loads(Path(file).read_text()) for file in files]
    peer = others[0] if others else None
    rows = collections.defaultdict(collections.Counter)
    for file, outcome in meshflow.items():
        row = rows[str(Path(file).parent)]
        passed = {n for n, r in outcome["tests"].items() if r["outcome"] == "passed"}
        row["files"] += 1
        row["passed"] += len(passed)
        row["run"] += sum(r["outcome"] != "skipped" for r in outcome["tests"].values())
        row["ended"] += outcome["exit_code"] is None
        if peer is not None and file in peer:
            expected = {
                n for n, r in peer[file]["tests"].items() if r["outcome"] == "passed"
            } & outcome["tests"].keys()
            row["compared files"] += 1
            row["expected"] += len(expected)
            row["both"] += len(expected & passed)
    print(
        "| folder | files | out of time | Meshflow | files on both | TensorFlow | of these, Meshflow |"
    )
    print("|", " --- |" * 7)
    for folder, row in [*sorted(rows.items()), ("all", sum(rows.values(), collections.Counter()))]:
        cells = [
            folder, row["files"], row["ended"], f"{row['passed']} of {row['run']}",
            row["compared files"], row["expected"], row["both"],
        ]  # fmt: skip
        print("|", " | ".join(map(str, cells)), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "out/unit-tests", 300)
    arguments = parser.parse_args()
    if arguments.table:
        return show_table(arguments.table)
    arguments.root = arguments.root.resolve()
    source = download(arguments.root)
    base = source / "tensorflow/python"
    outcomes = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    messages = []
    for file in find_files(source, arguments.names or ["."])[: arguments.files]:
        outcome = outcomes[str(file.relative_to(base))] = measure(file, source, arguments)
        counts = collections.Counter(r["outcome"] for r in outcome["tests"].values())
        state = (
            "out of time" if outcome["exit_code"] is None else f"exit code {outcome['exit_code']}"
        )
        print(file.relative_to(base), dict(counts), state, flush=True)
        messages += [r["error"] for r in outcome["tests"].values() if r["outcome"] == "failed"]
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(outcomes, indent=1))
    print_messages(messages, 20)


if __name__ == "__main__":
    main()
