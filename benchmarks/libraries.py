"""Run the test suites of libraries that were written for TensorFlow, unmodified, with Meshflow or TensorFlow.

    python benchmarks/libraries.py gpflow larq
    python benchmarks/libraries.py --python TENSORFLOW_PYTHON --out out/libraries-tensorflow.json
    python benchmarks/libraries.py --table out/libraries-meshflow.json out/libraries-tensorflow.json

Each library is installed from PyPI into a folder of its own, without TensorFlow; its tests come from its wheel or
source distribution. With Meshflow, the tests run by `meshflow run -m pytest`.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Library:
    """A library, packages that it needs apart from TensorFlow, and its tests.

    Args:
      requirement: Name and version on PyPI.
      module: Name of the package to import.
      packages: Other packages, installed without their own dependencies.
      tests: Patterns of test files in the installed package, or in the source distribution.
      skip: Patterns of files that are not run.
    """

    requirement: str
    module: str
    packages: str = ""
    tests: str = ""
    skip: str = ""

    @property
    def name(self):
        return self.requirement.partition("==")[0]


TFP = "tensorflow-probability==0.23.0 decorator cloudpickle gast dm-tree"
GPFLOW = "setuptools==75.8.0 check-shapes dropstackframe lark deprecated multipledispatch tabulate"
LIBRARIES = (
    Library("gpflow==2.9.2", "gpflow", f"{GPFLOW} {TFP}", "**/test_*.py"),
    Library("edward2==0.0.2", "edward2", TFP, "tensorflow/**/*_test.py", "*experimental*"),
    Library("tensorflow-probability==0.23.0", "tensorflow_probability", TFP, "**/*_test.py"),
    Library("spektral==1.3.1", "spektral", "networkx lxml"),
    Library("keras-tuner==1.4.7", "keras_tuner", "kt-legacy"),
    Library("autokeras==1.1.0", "autokeras", "keras-tuner==1.4.7 kt-legacy keras-nlp==0.5.2 regex dm-tree", "**/*_test.py"),
    Library("segmentation-models==1.0.1", "segmentation_models", "keras-applications==1.0.8 image-classifiers==1.0.0 efficientnet==1.0.0 scikit-image imageio lazy-loader networkx tifffile"),
    Library("kapre==0.3.7", "kapre", "librosa audioread soundfile soxr pooch lazy-loader decorator numba llvmlite platformdirs standard-aifc standard-sunau standard-chunk"),
    Library("tf-explain==0.3.1", "tf_explain", "opencv-python-headless pytest-mock", "**/test_*.py"),
    Library("tf-keras-vis==0.8.7", "tf_keras_vis", "deprecated imageio", "../tests/**/*_test.py"),
    Library("keras-rl2==1.0.5", "rl", "gym==0.26.2 gym-notices", "**/test_*.py"),
    Library("bert-for-tf2==0.14.9", "bert", "py-params params-flow==0.8.2 numpy"),
    Library("tensorflow-privacy==0.9.0", "tensorflow_privacy", f"dp-accounting==0.4.3 mpmath {TFP}", "**/*_test.py"),
    Library("neural-structured-learning==1.4.0", "neural_structured_learning", "", "**/*_test.py"),
    Library("tensorflow-model-optimization==0.8.0", "tensorflow_model_optimization", "dm-tree", "**/*_test.py"),
    Library("larq==0.13.3", "larq", "terminaltables pytest-mock pytest-snapshot", "**/*_test.py"),
    Library("trieste==4.2.2", "trieste", f"gpflow==2.9.2 gpflux==0.4.4 dill greenlet {GPFLOW} {TFP}"),
    Library("gpflux==0.4.4", "gpflux", f"gpflow==2.9.2 {GPFLOW} {TFP}"),
    Library("tf-agents==0.19.0", "tf_agents", f"gin-config gym==0.23.0 gym-notices {TFP}", "**/*_test.py"),
    Library("tensorflow-ranking==0.5.5", "tensorflow_ranking", ""),
    Library("deepxde==1.11.1", "deepxde", "scikit-optimize pyaml"),
    Library("keras-cv==0.5.1", "keras_cv", "regex tensorflow-datasets==4.9.4 etils promise psutil tensorflow-metadata termcolor toml importlib-resources zipp dm-tree", "layers/**/*_test.py"),
    Library("keras-nlp==0.5.2", "keras_nlp", "regex rouge-score nltk", "src/layers/*_test.py src/metrics/*_test.py src/models/*_test.py"),
    Library("tf-models-official==2.15.0", "official", f"setuptools==75.8.0 gin-config tensorflow-hub==0.16.1 tensorflow-model-optimization==0.8.0 sentencepiece sacrebleu seqeval Cython pycocotools py-cpuinfo portalocker tf-slim==1.1.0 tensorflow-datasets==4.9.4 etils promise psutil tensorflow-metadata==1.15.0 termcolor toml importlib-resources zipp {TFP}", "nlp/modeling/layers/*_test.py"),
    Library("tensorflow-lattice==2.0.13", "tensorflow_lattice", "", "python/*_test.py", "estimators*"),
    Library("tensorflow-recommenders==0.7.3", "tensorflow_recommenders", "", "**/*_test.py", "*tpu*"),
    Library("tensorflow-datasets==4.9.4", "tensorflow_datasets", "etils promise psutil tensorflow-metadata==1.15.0 termcolor toml importlib-resources zipp dm-tree array_record click dill", "core/**/*_test.py", "*beam*"),
    Library("tensorflow-similarity==0.17.1", "tensorflow_similarity", "distinctipy umap-learn pynndescent numba llvmlite tqdm nmslib termcolor", "../tests/**/test_*.py"),
    Library("tensorflow-gan==2.1.0", "tensorflow_gan", f"tensorflow-hub==0.16.1 setuptools==75.8.0 {TFP}", "python/losses/*_test.py python/features/*_test.py python/eval/*_test.py"),
    Library("tensorflow-constrained-optimization==0.2", "tensorflow_constrained_optimization", "", "**/*_test.py"),
    Library("tensorflow-model-remediation==0.1.7.1", "tensorflow_model_remediation", "mock dill tensorflow-hub==0.16.1 setuptools==75.8.0 dm-tree", "**/*_test.py"),
    Library("tensorflow-graphics==2021.12.3", "tensorflow_graphics", f"trimesh networkx {TFP}", "math/**/*_test.py"),
    Library("tensorflow-gnn==1.0.3", "tensorflow_gnn", "mock networkx pyglove ml-collections contextlib2 psutil", "graph/*_test.py keras/layers/*_test.py"),
    Library("livelossplot==0.5.5", "livelossplot", "bokeh ipython"),
    Library("keras-self-attention==0.51.0", "keras_self_attention", "", "tests/**/test_*.py"),
    Library("keras-bert==0.89.0", "keras_bert", "keras-transformer==0.40.0 keras-pos-embd==0.13.0 keras-multi-head==0.29.0 keras-layer-normalization==0.16.0 keras-position-wise-feed-forward==0.8.0 keras-embed-sim==0.10.0 keras-self-attention==0.51.0", "tests/**/test_*.py"),
    Library("keras-multi-head==0.29.0", "keras_multi_head", "keras-self-attention==0.51.0", "tests/**/test_*.py"),
    Library("keras-tcn==3.5.0", "tcn", ""),
    Library("tf-slim==1.1.0", "tf_slim", "", "**/*_test.py"),
    Library("dm-sonnet==2.0.2", "sonnet", "dm-tree tabulate", "src/*_test.py src/nets/*_test.py"),
    Library("tensorlayer==2.2.5", "tensorlayer", "progressbar2 python-utils imageio scikit-image lazy-loader networkx tifffile", ""),
    Library("tf2onnx==1.16.1", "tf2onnx", ""),
    Library("tensorflow-hub==0.16.1", "tensorflow_hub", "setuptools==75.8.0"),
    Library("vit-keras==0.1.2", "vit_keras", "validators"),
    Library("scikeras==0.12.0", "scikeras", ""),
    Library("trfl==1.2.0", "trfl", TFP, "*_test.py"),
    Library("mesh-tensorflow==0.1.21", "mesh_tensorflow", f"future gin-config {TFP}", "*_test.py transformer/*_test.py"),
    Library("nobrainer==1.2.1", "nobrainer", f"nibabel tensorflow-addons==0.23.0 typeguard==2.13.3 psutil scikit-image lazy-loader networkx imageio tifffile importlib-resources {TFP}", "**/*_test.py **/test_*.py"),
    Library("t3f==1.2.0", "t3f", "", "*_test.py"),
    Library("keras-drop-block==0.7.0", "keras_drop_block", "", "tests/**/test_*.py"),
    Library("keras-octave-conv==0.11.0", "keras_octave_conv", "", "tests/**/test_*.py"),
    Library("tensorflow-riemopt==0.3.1", "tensorflow_riemopt", "", "**/*_test.py"),
    Library("deel-lip==1.5.0", "deel", "", "tests/test_*.py"),
)  # fmt: skip


def install(library, root):
    """Install a library and the packages that it needs, without dependencies, and return the folder."""
    folder = root / library.name / "site"
    if not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run(
            [*pip, "install", "--no-deps", "--target", folder, library.requirement, *library.packages.split()],
            check=True, timeout=600,
        )  # fmt: skip
        # Newer packages of the environment count, except those that the library needs itself.
        for name in ("numpy", "numpy.libs"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return folder


def find_tests(library, root, limit):
    """Return the test files of the wheel, or of the source distribution if the wheel has none."""
    folder = root / library.name / "site" / library.module
    found = _match(folder, library)
    if library.tests and not found:
        source = root / library.name / "source"
        if not source.is_dir():
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
            subprocess.run(
                [*pip, "--no-deps", "--no-binary", library.name, "-d", source, library.requirement],
                check=True, timeout=600,
            )  # fmt: skip
            for archive in source.glob("*.tar.gz"):
                shutil.unpack_archive(archive, source, filter="data")
            # Some distributions leave it out, and `tests/gpflow` would hide the library.
            for folder in source.glob("*/tests"):
                (folder / "__init__.py").touch()
        found = _match(source, library) or _match(
            next(p for p in source.iterdir() if p.is_dir()), library
        )
    return found[:limit]


def _match(folder, library):
    files = sorted({file for pattern in library.tests.split() for file in folder.glob(pattern)})
    return [f for f in files if not any(f.match(p) for p in library.skip.split())]


def run(arguments, folder, python, seconds, cwd=None, **variables):
    """Run Python with the modules of a folder, and return the exit code, None after the time limit, and the output."""
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    if python is None:
        command = [sys.executable, "-m", "meshflow", "run"]
    else:
        command, environment["TF_USE_LEGACY_KERAS"] = [python], "1"
    environment |= {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment |= variables
    try:
        done = subprocess.run(
            [*command, *arguments], env=environment, timeout=seconds, cwd=cwd or folder.parent,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace")


def measure(library, arguments, root):
    """Import a library and run its tests, and return the outcome."""
    try:
        folder = install(library, root)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"error": f"cannot install: {error}"}
    code, output = run(["-c", f"import {library.module}"], folder, arguments.python, 300)
    outcome = {
        "imported": code == 0,
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        "files": 0,
        "failures": {},
    }
    if code:
        outcome["error"] = (
            output.strip().splitlines()[-1] if output.strip() else f"exit code {code}"
        )
        print(output[-1500:])
    if not library.tests:
        return outcome
    files = find_tests(library, root, arguments.files)
    for first in range(0, len(files), arguments.group):
        group = [str(file) for file in files[first : first + arguments.group]]
        report = folder.parent / f"report{first}.xml"
        report.unlink(missing_ok=True)
        pytest = [
            "-m", "pytest", "-qx" if arguments.first else "-q", "-p", "no:cacheprovider", f"--rootdir={folder.parent}",
            f"--junitxml={report}", f"--timeout={arguments.seconds // 4}", "-o", "junit_logging=no", *group,
        ]  # fmt: skip
        code, output = run(pytest, folder, arguments.python, arguments.seconds)
        outcome["files"] += len(group)
        if not report.exists():
            outcome["failed"] += len(group)
            outcome["failures"][str(group)] = f"no report, exit code {code}: {output[-300:]}"
            continue
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            problem = next((c for c in case if c.tag in ("failure", "error")), None)
            if problem is not None:
                outcome["failed"] += 1
                message = (problem.get("message") or problem.text or "").strip()
                lines = [
                    x[1:].strip() for x in (problem.text or "").splitlines() if x.startswith("E ")
                ]
                outcome["failures"][f"{case.get('classname')}::{case.get('name')}"] = (
                    lines[-1] if lines else message
                )[:300]
            else:
                key = "skipped" if case.find("skipped") is not None else "passed"
                outcome[key] += 1
    return outcome


def show_table(files):
    """Print a Markdown table of outcomes, one column for each file."""
    outcomes = {Path(file).stem: json.loads(Path(file).read_text()) for file in files}
    print("| library |", " | ".join(outcomes), "|\n|", " --- |" * (len(outcomes) + 1))
    for library in LIBRARIES:
        cells = [_describe(o.get(library.name)) for o in outcomes.values()]
        if any(cells):
            print(f"| {library.requirement} |", " | ".join(cells), "|")


def _describe(outcome):
    if not outcome:
        return ""
    if not outcome.get("imported"):
        return "not imported"
    total = outcome["passed"] + outcome["failed"]
    return f"{outcome['passed']} of {total} tests" if total else "imported"


def add_options(parser, prefix, seconds):
    """Add the options that commands which run tests have in common; `prefix` is the start of their paths."""
    parser.add_argument("names", nargs="*", help="tests to run; default: all")
    parser.add_argument("--python", help="Python with TensorFlow, instead of Meshflow")
    parser.add_argument("--root", type=Path, default=Path(prefix), help="folder of the tests")
    parser.add_argument("--out", type=Path, default=Path(f"{prefix}-meshflow.json"))
    parser.add_argument("--files", type=int, help="maximum number of test files")
    parser.add_argument("--seconds", type=int, default=seconds, help="time limit of a process")
    parser.add_argument("--table", nargs="*", help="print a table of earlier outcomes")


def print_messages(messages, count):
    """Print the most frequent messages of failures, without their numbers."""
    texts = collections.Counter(re.sub(r"0x[0-9a-f]+|\d+", "N", m)[:160] for m in messages)
    for message, frequency in texts.most_common(count):
        print(f"  {frequency} x {message}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "out/libraries", 1800)
    parser.add_argument("--group", type=int, default=8, help="test files in one process")
    parser.add_argument("--first", action="store_true", help="stop each file at its first failure")
    arguments = parser.parse_args()
    if arguments.table:
        return show_table(arguments.table)
    arguments.root = arguments.root.resolve()
    unknown = set(arguments.names) - {library.name for library in LIBRARIES}
    if unknown:
        parser.error(f"unknown libraries: {', '.join(sorted(unknown))}")
    outcomes = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for library in LIBRARIES:
        if arguments.names and library.name not in arguments.names:
            continue
        outcome = outcomes[library.name] = measure(library, arguments, arguments.root)
        print(library.name, {k: v for k, v in outcome.items() if k != "failures"}, flush=True)
        print_messages(outcome.get("failures", {}).values(), 8)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
