"""The names and prose of the package, its pages and its commits stay within the limits of scripts/prose.py."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(prose)

LIMITS = json.loads(prose.LIMITS.read_text())


# `make check` measures the same package.
@pytest.mark.soak
def test_package_stays_within_the_limits():
    assert prose.check_source(LIMITS, prose.Measurement(prose.SOURCE)) == []


def test_pages_are_in_plain_english():
    assert prose.check_pages() == []


def test_commit_subjects_are_imperative():
    assert prose.check_subjects(prose.read_subjects()) == []


def measure(folder, source, name="module.py"):
    path = folder / "package" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return prose.Measurement(folder)


@pytest.mark.parametrize(
    "measure_name, source",
    [
        ("bare_participles", "def kept(x): ...\n"),
        ("bare_participles", "class A:\n    def whole(self): ...\n"),
        ("of_names", "def size_of(x): ...\n"),
        ("of_names", "def of_table(x): ...\n"),
        ("pronoun_docstrings", 'def f():\n    """What a device holds."""\n'),
        ("pronoun_docstrings", 'class A:\n    """Whose iterator is an argument."""\n'),
        ("fragment_comments", "# Of these the first counts.\nx = 1\n"),
        ("odd_words", '"""The server gives the weights."""\n'),
        ("odd_words", "# A worker that stays behind.\nx = 1\n"),
        ("bare_any", "def f(x: Any) -> int: ...\n"),
        ("duplicate_classes", "class Reader: ...\nclass A:\n    class _Reader: ...\n"),
        ("private_reads", "def f(x):\n    return x._value\n"),
    ],
)
def test_each_violation_is_found(tmp_path, measure_name, source):
    found = measure(tmp_path, source)
    assert found.findings[measure_name]
    zero = dict.fromkeys(LIMITS, 0)
    assert any(p.startswith(measure_name) for p in prose.check_source(zero, found))


@pytest.mark.parametrize(
    "source",
    [
        "def embed(x): ...\n",
        "class A:\n    @property\n    def built(self): ...\n",
        "def is_whole(x): ...\n",
        'def f():\n    """Return the size.\n\n    >>> what = 1\n    """\n',
        "x = 1  # type: ignore\n",
        "# noqa: what\nx = 1\n",
        "class A:\n    def f(self):\n        return self._value + super()._value\n",
    ],
)
def test_good_code_has_no_findings(tmp_path, source):
    assert not any(measure(tmp_path, source).findings.values())


def test_classes_may_share_a_name_across_packages(tmp_path):
    measure(tmp_path, "class Reader: ...\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "module.py").write_text("class Reader: ...\n")
    assert not prose.Measurement(tmp_path).findings["duplicate_classes"]


def test_command_fails_for_bad_code_and_passes_for_good_code(tmp_path, capsys):
    source = "".join(f"def kept_{i}(x): ...\n" for i in range(3))
    measure(tmp_path, source)
    assert prose.main(["--source", str(tmp_path)]) == 0
    measure(tmp_path, 'def f(x):\n    """What is kept."""\n')
    assert prose.main(["--source", str(tmp_path)]) == 1
    assert "pronoun_docstrings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "subject, is_good",
    [
        ("Shuffle directly from Philox words", True),
        ("Re-add the pass", True),
        ("Merge branch 'x' into main", True),
        ("Orders are exchanged from the front", False),
        ("Added a test", False),
        ("What is new", False),
        ("Add " + "x" * 70, False),
    ],
)
def test_subjects(subject, is_good):
    assert (prose.check_subjects([subject]) == []) is is_good


def test_limits_cannot_rise():
    assert prose.check_limits(LIMITS) == []
    assert prose.check_limits({name: limit + 1 for name, limit in LIMITS.items()})
