"""Test that examples in the documentation print the documented output, and that recipes list every
file."""

import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {p.relative_to(DOCS).as_posix(): p.read_text() for p in sorted(DOCS.rglob("*.md"))}
# Pages of which every block of Python runs.
RUNNING = {name for name in PAGES if name.startswith(("recipes/", "guides/", "tutorial"))}
# The tutorial configures devices, so it needs a separate process.
EXAMPLES = [name for name, text in PAGES.items() if ">>>" in text and name != "tutorial.md"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, monkeypatch, tmp_path):
    # Examples may set environment variables, which are reset after the test, and write files.
    for variable in ("MESHFLOW_EMULATE_FLOAT8",):
        monkeypatch.setenv(variable, "0")
    monkeypatch.chdir(tmp_path)
    # The fence behind an example is no output of it.
    lines = PAGES[name].splitlines()
    text = "\n".join("" if line.startswith("```") else line for line in lines)
    test = doctest.DocTestParser().get_doctest(
        text, {"__name__": "__main__"}, name, str(DOCS / name), 0
    )
    report = []
    failed, _ = doctest.DocTestRunner().run(test, out=report.append)
    assert not failed, "".join(report)


def test_tutorial_runs_and_draws_its_figures(tmp_path):
    command = [sys.executable, DOCS / "tutorial_figures.py", "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {path.name for path in tmp_path.iterdir()}
    assert figures == {"tutorial_history.svg", "tutorial_regions.png"}
    assert all(name in PAGES["tutorial.md"] and (DOCS / name).exists() for name in figures)


@pytest.mark.parametrize("name", sorted(RUNNING))
def test_every_block_runs(name):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[name], re.DOTALL | re.MULTILINE)
    assert not [block for block in blocks if not block.startswith(">>> ")]


@pytest.mark.parametrize("name", sorted(n for n in RUNNING if "Files with" in PAGES[n]))
def test_recipes_list_every_file(name):
    heading, _, rest = PAGES[name].partition("Files with ")[2].partition("\n")
    words = "|".join(re.findall(r"`(.*?)`", heading))
    command = ["git", "grep", "-lwE", words, "--", "src/*.py", "src/*.cc", "src/*.h", "tests/*.py"]
    # It has cases of every class.
    command.append(":!tests/reference/sweep_cases.py")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r"^- `(.*?)`", rest, re.MULTILINE)) == sorted(found.split())


def test_included_code_is_there():
    for name, text in PAGES.items():
        for path, options in re.findall(r"\{literalinclude\} (\S+)\n(.*?)```", text, re.DOTALL):
            code = (DOCS / name).parent.joinpath(path).read_text()
            for option, value in re.findall(r"^:([\w-]+): (.*)$", options, re.MULTILINE):
                plain = value.rpartition(".")[2]
                wanted = rf"(class|def) {plain}\b" if option == "pyobject" else re.escape(value)
                assert option == "language" or re.search(wanted, code), (name, path, value)


# Decisions describe the state at their date.
NAMING = {n: text for n, text in PAGES.items() if not n.startswith("decisions/")}
NAMING |= {n: (ROOT / n).read_text() for n in ("README.md", "CONTRIBUTING.md")}


@pytest.mark.parametrize("name", NAMING)
def test_files_that_are_named_are_there(name):
    package = ROOT / "src" / "meshflow"
    inside = "|".join(p.name for p in package.iterdir() if p.is_dir())
    outside = "tests|docs|examples|benchmarks|scripts|src"
    paths = rf"`((?:{inside}|{outside})/[\w/]+\.(?:py|cc|h|md|sh)|(?:{inside}|{outside})/[\w/]*/)`"
    named = re.findall(paths, NAMING[name])
    assert not [path for path in named if not any((at / path).exists() for at in (package, ROOT))]


@pytest.mark.parametrize("name", NAMING)
def test_links_are_valid(name):
    folder = ROOT if name in ("README.md", "CONTRIBUTING.md") else (DOCS / name).parent
    links = re.findall(r"\]\((?!https?:|#|mailto:)([\w./-]+)[)#]", NAMING[name])
    assert not [link for link in links if not (folder / link).exists()]


def find_first_block(text):
    return re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]


def test_landing_page_has_the_example_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert find_first_block(PAGES["index.md"]) == find_first_block(readme)


def test_readme_example_trains_and_saves(monkeypatch, tmp_path, capsys):
    block = find_first_block((ROOT / "README.md").read_text())
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["model"].history.history["accuracy"][-1] > 0.95
    assert (tmp_path / "model.keras").exists()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_chart_shows_the_newest_results():
    spec = importlib.util.spec_from_file_location("chart", DOCS / "step_times_chart.py")
    chart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chart)
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert chart.draw(text) == (DOCS / "step_times.svg").read_text()


def test_figures_of_distributed_training_are_current():
    path = DOCS / "distributed_figures.py"
    spec = importlib.util.spec_from_file_location("distributed_figures", path)
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    for name, draw in figures.FIGURES.items():
        assert draw() == (DOCS / name).read_text(), name
