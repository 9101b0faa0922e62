"""The page: one file that needs no network, driven in headless Chromium where it is installed."""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshflow.profiler import DeployedProfile, folders
from meshflow.profiler.operators import OperatorCosts
from profiler import xspaces

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
driven = pytest.mark.skipif(CHROMIUM is None, reason="Chromium")


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the page of three workers, one of which waits for input, with malicious names."""
    folder = tmp_path_factory.mktemp("logs")
    bad = "</script><img src=x onerror=document.title='bad'>"
    table = {
        "ffi_call.1": {"layer": bad, "what": "matrix product", "flops": 10**9, "backward": True},
        "all-reduce.3": {
            "layer": "model",
            "collective": {
                **{"kind": "all-reduce", "bytes": 4000, "sent": 5333},
                **{"axes": ["batch"], "group": 3},
            },
        },
    }
    said = {
        "format": 1,
        "version": "1",
        "worker": "",
        "programs": {"jit_train_step": table},
        "memory": [[10**9 * n, 10**8 + n, 0] for n in range(5)],
        "theory": {
            "exchanges": [
                {
                    **{"purpose": "gradients", "kinds": ["all-reduce"]},
                    **{"axes": ["batch"], "sent": 5333},
                }
            ]
        },
        "tables": {"Parameter servers": {"closures": 12, "bytes_sent": 3000, "staleness": 0.25}},
        "devices": [{"id": 0, "kind": "Test 1", "platform": "cpu", "peak": 1e12}],
    }
    traces = xspaces.training(3, steps=30, slow=1, cause="input")
    xspaces.write(folder, traces, **{name: {**said, "worker": name} for name in traces})
    return folders.write_page(folders.find_profiles(folder)[0])


def test_page_is_self_contained(made):
    text = Path(made).read_text(encoding="utf-8")
    shown = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)|https?://|@import|url\(", shown)
    assert "default-src 'none'" in text
    assert text.count("</script>") == 2
    data = data_of(text)
    assert [w["name"] for w in data["workers"]] == ["worker0", "worker1", "worker2"]
    assert data["straggler"] == {"worker": 1}
    values = [sum(p["values"][i] for p in data["parts"]) for i in range(90)]
    assert values == pytest.approx(data["walls"], rel=0.002)
    first = data["operations"][0]
    assert first["peak"] == pytest.approx(first["rate"] / 1e12, abs=1e-4)
    only = data["traffic"][0]
    assert only["axes"] == ["batch"]
    (beside,) = data["theory"]
    assert (beside["purpose"], beside["expected"]) == ("gradients", 5333)
    assert only["sent"] > 0 and beside["counted"] == pytest.approx(only["sent"], abs=0.1)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Return the page of 10,000 steps, and the number of function calls to read the trace and write
    the page."""
    folder = tmp_path_factory.mktemp("long")
    place = xspaces.write(folder, xspaces.training(1, steps=10_000, cause="none"))
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        path = folders.write_page(str(place))
    finally:
        sys.setprofile(None)
    return path, calls


def test_many_steps_make_no_large_page(long):
    path, calls = long
    text = Path(path).read_text(encoding="utf-8")
    data = data_of(text)
    assert (data["steps"], data["bin"], len(data["rows"])) == (10_000, 5, 2000)
    assert data["rows"][1] == "train 5 to train 9"
    assert len(text) < 300_000
    # Of 50,000 events few calls each: a laptop does some millions in a second.
    assert calls < 25 * 50_000


DRIVER = """
<script>
const said = {};
const key = (name) => document.getElementById("steps").dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const now = () => [document.querySelector("#chosen h3").textContent, document.getElementById("steps").getAttribute("aria-valuenow")];
const column = (n) => [...document.querySelectorAll(`#operations tbody tr td:nth-child(${n})`)].map((c) => c.textContent);
said.start = now();
key("End"); said.end = now();
key("ArrowLeft"); key("ArrowLeft"); said.left = now();
key("Home"); said.home = now();
const canvas = document.querySelector("#steps canvas"), box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointerdown", { clientX: box.left + box.width * 0.5, clientY: box.top + 5, bubbles: true }));
said.tapped = now();
said.painted = canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height - 3, 1, 1).data[3];
said.late = document.querySelector("#chosen small").parentElement.textContent;
said.most = [...document.querySelectorAll("#parts .most")].map((c) => c.parentElement.firstChild.textContent);
said.times = column(1);
document.querySelector("#operations [data-key=time]").click();
said.turned = column(1);
said.sort = document.querySelector("#operations th[aria-sort]").getAttribute("aria-sort");
document.getElementById("grouped").click(); said.layers = column(1);
document.getElementById("filter").value = "model"; document.getElementById("filter").dispatchEvent(new Event("input"));
said.filtered = column(1);
document.querySelector("#legend button").click();
said.hidden = document.querySelector("#legend button").getAttribute("aria-pressed");
said.verdict = document.querySelector(".verdict h3").textContent;
said.fits = document.documentElement.scrollWidth <= window.innerWidth;
said.title = document.title;
said.memory = document.querySelectorAll("#memory path").length;
said.theory = [...document.querySelectorAll("#theory tbody td")].map((c) => c.textContent);
said.tables = [...document.querySelectorAll("#tables section:first-child tr")].map((r) => r.textContent);
document.body.dataset.said = JSON.stringify(said);
</script>
"""


def drive(file, tmp_path, width, driver=DRIVER):
    """Return the results of driving a page in a window of a given width."""
    copy = tmp_path / "driven.html"
    copy.write_text(Path(file).read_text(encoding="utf-8").replace("</body>", driver + "</body>"))
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
    result = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", *quiet),
            *("--disable-quic", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
            *(f"--window-size={width},900", "--virtual-time-budget=2000", copy.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = re.search(r'data-said="(.*?)"', result.stdout, re.S)
    assert said, result.stderr
    return json.loads(html.unescape(said[1]))


@driven
@pytest.mark.parametrize("width", [1280, 500])
def test_a_page_is_driven(made, tmp_path, width):
    said = drive(made, tmp_path, width)
    assert said["start"] == ["train 1", "1"]
    assert said["end"] == ["train 29", "29"]
    assert said["left"] == ["train 27", "27"]
    assert said["home"] == ["train 0", "0"]
    assert said["tapped"] == ["train 15", "15"]
    assert said["painted"] == 255
    assert said["late"] == "worker1the last"
    assert said["most"] == ["waiting for input"]
    assert said["turned"] == said["times"][::-1]
    assert said["sort"] == "ascending"
    assert any("</script>" in name for name in said["layers"])
    assert said["filtered"] == ["model"]
    assert said["hidden"] == "false"
    assert said["verdict"] == "Worker1 delays the others"
    assert said["fits"]
    assert said["title"].endswith("Meshflow profile")
    assert said["memory"] == 3
    assert said["theory"][:4] == ["gradients", "batch", "all-reduce", "5.33 kB"]
    assert said["tables"] == ["closures12", "bytes sent3 kB", "staleness0.25"]


MANY_DRIVER = """
<script>
const said = { drawn: 0, nodes: document.querySelectorAll("*").length };
const plain = CanvasRenderingContext2D.prototype.fillRect;
CanvasRenderingContext2D.prototype.fillRect = function (...a) { said.drawn++; return plain.apply(this, a); };
const canvas = document.querySelector("#steps canvas");
document.getElementById("steps").dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
said.columns = canvas.clientWidth;
said.end = document.querySelector("#chosen h3").textContent;
document.body.dataset.said = JSON.stringify(said);
</script>
"""


@driven
def test_page_of_many_steps_draws_only_visible_marks(long, tmp_path):
    said = drive(long[0], tmp_path, 1280, MANY_DRIVER)
    assert said["end"] == "train 9995 to train 9999"
    assert said["nodes"] < 600
    # One rectangle per column and part, for any number of steps.
    parts = len(data_of(Path(long[0]).read_text(encoding="utf-8"))["parts"])
    assert 0 < said["drawn"] <= said["columns"] * (parts + 1)


BAD = "</script><img src=x onerror=document.title='bad'>"
MODEL_DRIVER = """
<script>
const said = {};
const column = (n) => [...document.querySelectorAll(`#operators tbody tr td:nth-child(${n})`)].map((c) => c.textContent);
said.figures = [...document.querySelectorAll(".figure")].map((f) => f.textContent);
said.lanes = [...document.querySelectorAll("#kinds .lane")].map((l) => [l.querySelector(".who").textContent, l.querySelectorAll("i").length, l.querySelector(".total").textContent]);
said.heads = [...document.querySelectorAll("#operators th")].map((c) => c.textContent);
said.names = column(2);
said.wide = [...document.querySelectorAll("#kinds .lane:first-child i")].map((i) => Math.round(i.getBoundingClientRect().width));
said.more = document.getElementById("all").textContent;
document.querySelector("#operators [data-key=bytes]").click();
said.largest = column(2)[0];
document.querySelector("#operators [data-key=name]").click();
said.sort = document.querySelector("#operators th[aria-sort]").getAttribute("aria-sort") + document.activeElement.dataset.key;
document.getElementById("all").click(); said.all = column(1).length;
document.querySelector("#legend button").click(); said.one = column(1);
document.querySelector("#legend button").click();
document.getElementById("grouped").click(); said.kinds = column(1);
document.getElementById("filter").value = "conv"; document.getElementById("filter").dispatchEvent(new Event("input"));
said.filtered = column(1);
said.fits = document.documentElement.scrollWidth <= window.innerWidth;
said.title = document.title;
document.body.dataset.said = JSON.stringify(said);
</script>
"""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """The page of a model with two convolutions and many additions, with a name that means mischief."""
    operators = [
        OperatorCosts(BAD, "Convolution", 1, 3e-3, 5e-3, 4000),
        OperatorCosts("conv_2", "Convolution", 1, 1e-3, 1e-3, 9000),
        *(OperatorCosts(f"add_{n:02}", "Add", 2, 1e-5, None, None) for n in range(30)),
    ]
    found = DeployedProfile("models/tiny.tflite", "LiteRT", 4, 50, 0.02, 0.007, 0.004, operators)
    return found.write_page(tmp_path_factory.mktemp("pages") / "model.html")


def test_page_of_a_deployed_model_is_self_contained(deployed):
    text = Path(deployed).read_text(encoding="utf-8")
    shown = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)|https?://|@import|url\(", shown)
    assert "default-src 'none'" in text
    assert text.count("</script>") == 2
    data = data_of(text)
    assert (data["first"], data["call"], data["batch"], data["runs"]) == (7000, 4000, 4, 50)
    assert data["operators"][0] == {
        **{"name": BAD, "kind": "Convolution", "calls": 1},
        **{"time": 3000, "first": 5000, "bytes": 4000},
    }


@driven
@pytest.mark.parametrize("width", [1280, 500])
def test_a_page_of_a_deployed_model_is_driven(deployed, tmp_path, width):
    said = drive(deployed, tmp_path, width, MODEL_DRIVER)
    assert said["figures"][:4] == ["4.00 msa call", "1,000rows a second", "7.00 msthe first call", "20.0 msloading"]  # fmt: skip
    assert said["lanes"] == [["A later call", 2, "4.30 ms"], ["The first call", 1, "6.00 ms"], ["Memory", 1, "13.0 kB"]]  # fmt: skip
    # Convolutions take 4 of 4.3 ms.
    assert said["wide"][0] / sum(said["wide"]) == pytest.approx(4 / 4.3, abs=0.02)
    assert said["heads"] == [
        *("Operator", "Name", "Time", "Share", "Calls", "Each", "First call", "Memory"),
        "Of memory",
    ]
    assert said["names"][:3] == [BAD, "conv_2", "add_00"] and len(said["names"]) == 20
    assert said["largest"] == "conv_2"
    assert said["sort"] == "ascendingname"
    assert (said["more"], said["all"]) == ("Show all 32", 32)
    assert said["one"] == ["Convolution"] * 2
    assert said["kinds"] == ["Convolution2 operators", "Add30 operators"]
    assert said["filtered"] == ["Convolution2 operators"]
    assert said["fits"]
    assert said["title"] == "tiny.tflite - Meshflow profile"
