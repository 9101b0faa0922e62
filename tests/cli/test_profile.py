"""`meshflow profile`: summaries, differences, pages, and a page served to this machine."""

import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest
from typer.testing import CliRunner

from meshflow.cli.commands import app
from meshflow.profiler import client
from profiler import xspaces


def run(*words):
    return CliRunner().invoke(app, ["profile", *map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    made = {}
    for cause in ("none", "input"):
        made[cause] = tmp_path_factory.mktemp(cause)
        place = xspaces.write(made[cause], xspaces.training(2, slow=1, cause=cause))
        (place / "worker0.trace.json.gz").write_bytes(b"everything")
    return made


def test_summary(logs):
    result = run("summary", logs["input"])
    assert result.exit_code == 0, result.output
    assert "2026_01_02_03_04_05, 8 steps" in result.output
    assert "Worker1 delays the others: worker1 takes" in result.output
    assert re.search(r"waiting for input +1\.\d+ ms +\d+% +11\.\d ms +\d+%", result.output)


def test_diff(logs):
    result = run("diff", logs["none"], logs["input"])
    assert result.exit_code == 0, result.output
    assert re.match(
        r"Steps are [\d.]+ ms slower \(\d+%\): 5 ms of it is waiting for input", result.output
    )
    assert re.search(r"waiting for other workers +\d+ µs +5\.\d+ ms", result.output)


def test_view(logs, tmp_path):
    result = run("view", logs["input"])
    assert result.output.strip().endswith("2026_01_02_03_04_05/meshflow.html")
    other = run("view", logs["input"], "--out", tmp_path)
    assert other.output.strip() == str(tmp_path / "meshflow.html")
    # The command finds the traces from the folder above.
    (found,) = re.findall(r'"trace":"([^"]+)"', (tmp_path / "meshflow.html").read_text())
    assert (tmp_path / found).read_bytes() == b"everything"


@pytest.mark.parametrize("command", ["summary", "view"])
def test_errors_are_one_line(command, tmp_path):
    result = run(command, tmp_path / "nothing")
    assert result.exit_code == 1
    assert result.output.startswith("There is no profile in ")
    assert result.output.count("\n") == 1


def test_record(logs, tmp_path, monkeypatch):
    asked = []

    def take(*given):
        asked.append(given)
        place = xspaces.write(tmp_path, xspaces.training(1, cause="compute"))
        return str(place / "meshflow.html")

    monkeypatch.setattr(client, "take_profile", take)
    words = ("a:1,b:2", "--logdir", tmp_path, "--ms", 5, "--every", 0.01, "--count", 3)
    result = run("record", *words)
    assert result.exit_code == 0, result.output
    assert asked == [("a:1,b:2", str(tmp_path), 5)] * 3
    assert result.output.count("Compute-bound") == 3
    monkeypatch.undo()
    assert "duration_ms must be" in run("record", "a:1", "--ms", 0).output


def test_a_page_is_served_to_this_machine(logs, tmp_path):
    words = [sys.executable, "-m", "meshflow", "profile", "view", str(logs["input"]), "--serve"]
    words += ["--out", str(tmp_path)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        address = next(
            found[0]
            for found in (re.search(r"http://127\.0\.0\.1:\d+/", l) for l in server.stdout)
            if found
        )
        with urllib.request.urlopen(address) as answer:
            content = answer.read().decode()
        assert "Meshflow profile" in content
        (found,) = re.findall(r'"trace":"([^"]+)"', content)
        with urllib.request.urlopen(urllib.parse.urljoin(address, found)) as answer:
            assert answer.read() == b"everything"
        for path, headers in (("../../etc/passwd", {}), ("", {"Host": "elsewhere.example:80"})):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(urllib.request.Request(address + path, headers=headers))
    finally:
        server.kill()
        server.communicate()
