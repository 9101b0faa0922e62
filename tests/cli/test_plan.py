"""`meshflow plan` as a user runs it."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

import meshflow as tf
from meshflow.cli import plan as command
from meshflow.cli.commands import app

SCRIPT = """
import sys
import numpy as np
import meshflow as tf

width = int(sys.argv[sys.argv.index("--width") + 1]) if "--width" in sys.argv else 64
layers = [tf.keras.layers.Dense(4 * width, "relu"), tf.keras.layers.Dense(width)]
model = tf.keras.Sequential(layers, name="wide")
model.compile("adam", "mse")
if "--evaluate" not in sys.argv:
    try:
        rows = np.zeros((96, width), "float32")
        {train}
    except Exception:
        pass
    print("trained")
"""


@pytest.fixture(autouse=True)
def devices():
    """Skip the creation of devices by the command; the devices of this process are used."""
    assert len(tf.config.list_logical_devices("CPU")) == 4


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("{train}", "model.fit(rows, rows, batch_size=32)"))
    return path


def run_planner(*arguments, code=0):
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_candidates_reasons_and_lines_to_paste(script):
    text = run_planner(script, "--devices", 64, "--memory", "80GB", "--top", 2, "--batch", 256)
    assert "wide: 33,088 parameters, 256 examples a step, 64 devices of 80 GB" in text
    assert "strategy = tf.distribute.MeshStrategy(mesh, rules=" in text
    assert "other plans fit" in text and "Dropped:" in text and "more than the 2 layers" in text
    assert "trained" not in text


def test_memory_and_speeds_of_a_type_of_devices(script):
    found = json.loads(run_planner(script, "--kind", "v5p", "--link", "1e9", "--json"))["hardware"]
    assert (found["memory"], found["link"], found["products"]) == (95 * 10**9, 1e9, 459e12)


def test_as_json_with_arguments_of_the_script(script):
    options = ["--json", "--devices", 4, "--memory", "1MB", "--objective", "memory", "--compile", 1]
    text = run_planner(script, *options, "--width", 128)
    found = json.loads(text)
    assert (found["parameters"], found["batch"]) == (128 * 512 * 2 + 512 + 128, 32)
    first = found["candidates"][0]
    assert first["memory"] == sum(first["held"].values()) <= 1e6
    assert first["compiled"]["memory"] == pytest.approx(first["memory"], rel=0.15)
    assert first["compiled"]["sent"] == pytest.approx(first["sent"], rel=0.05)
    assert all(c["memory"] >= first["memory"] for c in found["candidates"])
    assert any("do not fit, the least of them" in line for line in found["dropped"])
    assert found["hardware"]["memory"] == 10**6 and len(found["lines"]) == 2


def test_measured_speeds_margins_and_policies(script):
    policies = ["--precision", "float32", "--precision", "mixed_bfloat16"]
    options = ["--json", "--measure", "--margin", "20%", "--host", "3e9", "--devices", 4, *policies]
    text = run_planner(script, *options)
    found = json.loads(text[text.index("{") :])
    hardware = found["hardware"]
    assert (hardware["margin"], hardware["host"], hardware["memory"]) == (0.2, 3e9, 16 * 10**9)
    assert hardware["link"] != tf.distribute.Hardware.link and "latency" in text
    assert {c["options"]["precision"] for c in found["candidates"]} == {"float32", "mixed_bfloat16"}
    assert "margin must be" in run_planner(script, "--margin", "2", code=2)


def test_terminal_shows_progress():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with command._show_progress(console) as progress:
        progress("Compiling 1 of 3: data 4 [x] model 2")
    assert (
        "Compiling 1 of 3: data 4 [x] model 2" in screen.getvalue()
        and "0:00:0" in screen.getvalue()
    )
    silent = io.StringIO()
    with command._show_progress(Console(file=silent)) as progress:
        progress("Reading model")
    assert silent.getvalue().strip() == ""


def test_a_batch_that_the_caller_makes(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("{train}", "model.train_on_batch(rows, rows)"))
    assert "96 examples a step" in run_planner(path, "--devices", 2)


def test_custom_loop_is_referred_to_its_planner(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("{train}", "pass").replace(
            "model.compile", "model(tf.ones([1, 4])); model.compile"
        )
    )
    text = run_planner(path, "--devices", 2, code=1)
    assert "Custom training loops cannot be planned" in text
    assert 'train.py", line 9, in <module>' in text and "dispatch.py" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--evaluate"], "ended without calling fit"),
        (["--width", "many"], "failed before it called fit: ValueError: invalid literal"),
        (["--devices", "4", "--memory", "10KB"], "10 kB. The smallest, "),
        (["--devices", "7"], "32 examples do not divide over 7 devices"),
    ],
)
def test_unplannable_programs(script, arguments, expected):
    assert expected in run_planner(script, *arguments, code=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train.py"], "there is no script"),
        (["SCRIPT", "--memory", "80 bananas"], "such as 80GB"),
        (["SCRIPT", "--devices", "0"], "--devices"),
        (["SCRIPT", "--link", "0"], "link must be a positive number"),
        (["SCRIPT", "--kind", "abacus"], "kind must be one of h100, h200, v5p"),
        (["SCRIPT", "--objective", "beauty"], "objective must be one of 'time', 'bytes', 'memory'"),
        (["SCRIPT", "--batch", "0"], "--batch"),
        (["SCRIPT", "--compile", "-1"], "--compile"),
    ],
)
def test_bad_options(script, arguments, expected):
    given = [str(script) if a == "SCRIPT" else a for a in arguments]
    text = " ".join(run_planner(*given, code=2).replace("│", " ").split())
    assert expected in text
