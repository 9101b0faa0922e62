"""Every kind of model in every format that TensorFlow, Keras 3, LiteRT and ONNX Runtime share with us."""

import importlib.util
import json
import os
import pathlib
import tarfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
spec = importlib.util.spec_from_file_location(
    "exchange_matrix", ROOT / "docs" / "exchange_matrix.py"
)
matrix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(matrix)
NUMBERS = json.loads(matrix.NUMBERS.read_text())

# Rounded otherwise by each program: outputs are of the order of 1.
LIMIT = 2e-6
# bfloat16 is rounded at other places.
BFLOAT16 = 3e-2
# Keras 3 computes otherwise in training: moving variances without the correction for small batches, and rows of
# embeddings that a batch has several times.
TRAINED = {"resnet": 1e-3, "text": 5e-3}


def limit(program, kind):
    if kind == "mixed":
        return BFLOAT16
    return TRAINED.get(kind, LIMIT) if program == "keras3" else LIMIT


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exchange")
    with tarfile.open(matrix.STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def cells(direction):
    for program, kinds in NUMBERS[direction].items():
        for kind, forms in kinds.items():
            for form, value in forms.items():
                yield program, kind, form, value


# One combination for each difference between the programs; `make test-all` runs all of them.
OFTEN = {
    ("tf-keras", "cnn", "keras"),
    ("tf-keras", "subclassed", "keras"),
    ("keras3", "mlp", "h5"),
    ("keras3", "several", "keras"),
    ("keras3", "subclassed", "weights"),
    ("keras3", "text", "saved_model"),
}
READ = [
    pytest.param(*cell[:3], marks=[] if cell[:3] in OFTEN else [pytest.mark.soak])
    for cell in cells("in")
    if not isinstance(cell[3], str)
]


@pytest.mark.parametrize(("program", "kind", "form"), READ)
def test_files_of_tensorflow_are_read(program, kind, form, stored):
    assert matrix.read_here(stored / program, kind, form) <= limit(program, kind)


def test_page_shows_the_measurements():
    page = matrix.PAGE.read_text()
    shown = page.partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    assert shown == matrix.format_tables(NUMBERS), "run docs/exchange_matrix.py"
    for direction in ("in", "out"):
        for program, kind, form, value in cells(direction):
            assert isinstance(value, str) or value <= limit(program, kind), (program, kind, form)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [k for k in matrix.cases.KINDS if k != "text"])
def test_litert_and_onnx_runtime_agree(kind):
    pytest.importorskip("ai_edge_litert", reason="needs the extra lite")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    for run in (matrix.litert, matrix.onnx):
        assert run(kind) <= limit("", kind)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not os.access(matrix.PYTHON, os.X_OK),
    reason="MESHFLOW_PEERS_PYTHON names no Python with TensorFlow 2.21",
)
def test_every_cell_against_tensorflow_itself(tmp_path):
    found = matrix.measure_all(tmp_path)
    for direction in ("in", "out"):
        for program, kind, form, value in cells(direction):
            now = found[direction][program][kind][form]
            assert isinstance(now, str) == isinstance(value, str), (program, kind, form, now)
            assert isinstance(now, str) or now <= limit(program, kind), (program, kind, form)
