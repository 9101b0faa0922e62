"""The page: one file that needs no network, driven in headless Chromium where it is installed."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meshflow.profiler import folders, page
from profiler import xspaces

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
driven = pytest.mark.skipif(CHROMIUM is None, reason="Chromium")


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of three workers, one of which waits for input, with names that mean mischief."""
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
        "tables": {"Parameter servers": {"closures": 12, "bytes_sent": 3000, "staleness": 0.25}},
        "devices": [{"id": 0, "kind": "Test 1", "platform": "cpu", "peak": 1e12}],
    }
    traces = xspaces.training(3, steps=30, slow=1, cause="input")
    xspaces.write(folder, traces, **{name: {**said, "worker": name} for name in traces})
    return folders.write_page(folders.profiles(folder)[0])


def test_a_page_stands_alone(made):
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
    assert data["traffic"][0]["axes"] == ["batch"]


def test_many_steps_make_no_large_page(tmp_path):
    place = xspaces.write(tmp_path, xspaces.training(1, steps=10_000, cause="none"))
    text = page.page(folders.load(place))
    data = data_of(text)
    assert (data["steps"], data["bin"], len(data["rows"])) == (10_000, 5, 2000)
    assert data["rows"][1] == "train 5 to train 9"
    assert len(text) < 300_000


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
said.tables = [...document.querySelectorAll("#tables section:first-child tr")].map((r) => r.textContent);
document.body.dataset.said = JSON.stringify(said);
</script>
"""


def drive(file, tmp_path, width):
    """What a page says after it was driven in a window of a width."""
    copy = tmp_path / "driven.html"
    copy.write_text(Path(file).read_text(encoding="utf-8").replace("</body>", DRIVER + "</body>"))
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
    assert said["verdict"] == "Worker1 is waited for"
    assert said["fits"]
    assert said["title"].endswith("Meshflow profile")
    assert said["memory"] == 3
    assert said["tables"] == ["closures12", "bytes sent3 kB", "staleness0.25"]
