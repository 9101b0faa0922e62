"""The examples in the guides that show what they print are true."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = sorted(p.name for p in DOCS.glob("*.md") if ">>>" in p.read_text())


@pytest.mark.parametrize("name", GUIDES)
def test_examples(name, monkeypatch):
    # Examples may set variables of the environment, which end with the test.
    for variable in ("MESHFLOW_EMULATE_FLOAT8",):
        monkeypatch.setenv(variable, "0")
    # The fence behind an example is no output of it.
    lines = (DOCS / name).read_text().splitlines()
    text = "\n".join("" if line.startswith("```") else line for line in lines)
    test = doctest.DocTestParser().get_doctest(text, {}, name, str(DOCS / name), 0)
    report = []
    failed, _ = doctest.DocTestRunner().run(test, out=report.append)
    assert not failed, "".join(report)
