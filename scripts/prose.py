"""Measure names, docstrings, comments, Markdown pages and commit subjects against fixed limits.

    python scripts/prose.py                        # check everything; exit with 1 if a limit is exceeded
    python scripts/prose.py --list odd_words       # print each finding of one measure
    python scripts/prose.py --update               # lower the limits to the measured values
    python scripts/prose.py --subject "Add a test" # check the subject of a commit

The limits are stored in `scripts/prose_limits.json`. They can only decrease: the check also fails if a limit is higher
than in the last commit. `docs/recipes/naming.md` explains the rules in prose.

Measures of the source code:
  bare_participles: functions and methods (properties excepted) with a lone participle or adjective as their name.
  of_names: functions with `of` at either end of their name.
  pronoun_docstrings: docstrings that start with a relative pronoun, in percent.
  fragment_comments: comments that start with a relative pronoun, `Of`, `From` or `Nothing`, in percent.
  odd_words: unidiomatic words in docstrings and comments, per 1,000 words.
  bare_any: annotations that are exactly `Any`, in percent.
  duplicate_classes: classes that share their name with another class of the same top-level package.
  private_reads: accesses to private attributes of other objects, per 1,000 lines.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import math
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from proselint.checks import __register__
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "meshflow"
LIMITS = ROOT / "scripts" / "prose_limits.json"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs",
    "benchmarks/README.md",
)
MAX_ODD_WORDS_PER_PAGE = 5.0
# Commits before this date have other subjects, and history is not rewritten.
COMMITS_SINCE = "2026-11-28T00:00:00Z"
MAX_SUBJECT_LENGTH = 72

# Word lists. `odd_words` are at least ten times as frequent in a literal translation as in equinox, optax, grain, flax
# and keras. `subject_verbs` are the first words of commit subjects; add a verb when a commit needs it.
WORDS = {
    k: frozenset(v.split())
    for k, v in json.loads((ROOT / "scripts" / "prose_words.json").read_text()).items()
}
IRREGULAR_PARTICIPLES = WORDS["irregular_participles"]
NOUNS_IN_ED = WORDS["nouns_in_ed"]
ODD_WORDS = WORDS["odd_words"]
SUBJECT_VERBS = WORDS["subject_verbs"]
RELATIVE = r"(?:What|Which|How|Where|Who|Whose|Whom|That|Those|Whatever|Whoever)\b"
RELATIVE_START = re.compile(RELATIVE)
FRAGMENT_START = re.compile(rf"{RELATIVE}|(?:Of|From|Nothing|Nobody)\b")
WORD = re.compile(r"[a-z]+(?:'s)?")
NOT_PROSE = re.compile(r">>>.*|\.\.\. .*|```.*?```|`[^`]*`", re.DOTALL)
DIRECTIVE = re.compile(r"#+\s*(?:type:|noqa|pylint|pragma|fmt:|mypy:|pyright:|!|-)")
# Public members of named tuples; their names begin with an underscore to differ from those of fields.
NAMED_TUPLE_MEMBERS = {"_replace", "_asdict", "_fields", "_make"}


class Measurement:
    """Findings of each measure, and the totals that they are relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.findings: dict[str, list[str]] = collections.defaultdict(list)
        self.totals: collections.Counter[str] = collections.Counter()
        classes: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for path in sorted(root.rglob("*.py")):
            self._measure_file(path, classes)
        for locations in classes.values():
            if len(locations) > 1:
                self.findings["duplicate_classes"] += locations

    def compute_table(self) -> dict[str, float]:
        """Return the value of each measure, rounded as it is compared."""

        def ratio(measure: str, total: str, factor: int) -> float:
            # Rounded up, so that a single finding exceeds a limit of zero.
            exact = factor * len(self.findings[measure]) / max(self.totals[total], 1)
            return math.ceil(10 * exact) / 10

        return {
            "bare_participles": len(self.findings["bare_participles"]),
            "of_names": len(self.findings["of_names"]),
            "pronoun_docstrings": ratio("pronoun_docstrings", "docstrings", 100),
            "fragment_comments": ratio("fragment_comments", "comments", 100),
            "odd_words": ratio("odd_words", "words", 1000),
            "bare_any": ratio("bare_any", "annotations", 100),
            "duplicate_classes": len(self.findings["duplicate_classes"]),
            "private_reads": ratio("private_reads", "lines", 1000),
        }

    def _add(self, measure: str, path: Path, line: int, text: str) -> None:
        self.findings[measure].append(f"{path.relative_to(self.root)}:{line}: {text}")

    def _measure_prose(self, path: Path, line: int, text: str) -> None:
        words = WORD.findall(NOT_PROSE.sub(" ", text).lower())
        self.totals["words"] += len(words)
        for word in words:
            if word in ODD_WORDS:
                self._add("odd_words", path, line, word)

    def _measure_file(self, path: Path, classes: dict[tuple[str, str], list[str]]) -> None:
        source = path.read_text(encoding="utf8")
        tree = ast.parse(source)
        self.totals["lines"] += source.count("\n")
        for line, text in find_comments(source):
            self.totals["comments"] += 1
            self._measure_prose(path, line, text)
            if FRAGMENT_START.match(text):
                self._add("fragment_comments", path, line, text[:100])
        package = path.relative_to(self.root).parts[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self._measure_docstring(path, node)
            if isinstance(node, ast.ClassDef):
                location = f"{path.relative_to(self.root)}:{node.lineno}: {node.name}"
                classes[package, node.name.lstrip("_")].append(location)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._measure_function(path, node)
            elif isinstance(node, ast.Attribute) and is_private_read(node):
                self._add("private_reads", path, node.lineno, ast.unparse(node)[:80])

    def _measure_docstring(
        self, path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        text = ast.get_docstring(node)
        if not text:
            return
        line = getattr(node, "lineno", 1)
        self.totals["docstrings"] += 1
        self._measure_prose(path, line, text)
        if RELATIVE_START.match(text):
            self._add("pronoun_docstrings", path, line, text.split("\n")[0][:100])

    def _measure_function(self, path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = [ast.unparse(d) for d in node.decorator_list]
        if node.name.startswith("__") or any("overload" in d for d in decorators):
            return
        name = node.name.strip("_")
        is_property = any(d.endswith(("property", ".setter")) for d in decorators)
        if not is_property and is_bare_participle(name):
            self._add("bare_participles", path, node.lineno, node.name)
        if re.search(r"(^|_)of$|^of_", name):
            self._add("of_names", path, node.lineno, node.name)
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [p for p in (arguments.vararg, arguments.kwarg) if p is not None]
        for annotation in [*(p.annotation for p in parameters), node.returns]:
            if annotation is not None:
                self.totals["annotations"] += 1
                if ast.unparse(annotation) in ("Any", "typing.Any"):
                    self._add("bare_any", path, node.lineno, node.name)


def is_bare_participle(name: str) -> bool:
    """Check whether a function name is a lone participle or adjective."""
    if "_" in name:
        return False
    return name in IRREGULAR_PARTICIPLES or (name.endswith("ed") and name not in NOUNS_IN_ED)


def is_private_read(node: ast.Attribute) -> bool:
    """Check whether an attribute is private and its object is not `self`, `cls` or `super()`."""
    base = node.value
    if isinstance(base, ast.Name):
        is_own = base.id in ("self", "cls")
    else:
        is_own = isinstance(base, ast.Call) and ast.unparse(base.func) == "super"
    is_private = re.match(r"_[a-z]", node.attr) is not None and node.attr not in NAMED_TUPLE_MEMBERS
    return is_private and not is_own


def find_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment on a line of its own, without linter directives."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            text = token.string.lstrip("#").strip()
            if text and not DIRECTIVE.match(token.string):
                yield token.start[0], text


def check_source(limits: dict[str, float], measurement: Measurement) -> list[str]:
    """Return a message for each measure of the source code that exceeds its limit."""
    problems = []
    for measure, value in measurement.compute_table().items():
        if value > limits[measure]:
            examples = "\n    ".join(measurement.findings[measure][-5:])
            problems.append(
                f"{measure} is {value}, the limit is {limits[measure]}. List all findings with "
                f"`python scripts/prose.py --list {measure}`. Some of them:\n    {examples}"
            )
    return problems


def find_pages() -> Iterator[Path]:
    """Yield the Markdown pages of the project, without generated ones."""
    for name in PAGES:
        path = ROOT / name
        if path.is_dir():
            generated = {path / "_build", path / "reference"}
            yield from (p for p in sorted(path.rglob("*.md")) if not generated & set(p.parents))
        elif path.exists():
            yield path


def strip_code(text: str) -> str:
    """Replace code blocks, code spans, link targets and tables' rules by blanks, keeping the lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(
        r"^```.*?^```|`[^`]*`|\]\([^)]*\)|^\|[-| :]+\|$",
        blank,
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def check_pages() -> list[str]:
    """Return a message for each page with too many unidiomatic words."""
    problems = []
    for path in find_pages():
        words = WORD.findall(strip_code(path.read_text(encoding="utf8")).lower())
        found = [word for word in words if word in ODD_WORDS]
        rate = 1000 * len(found) / max(len(words), 1)
        if rate > MAX_ODD_WORDS_PER_PAGE:
            common = ", ".join(w for w, _ in collections.Counter(found).most_common(6))
            problems.append(
                f"{path.relative_to(ROOT)}: {rate:.1f} unidiomatic words per 1,000, the limit is "
                f"{MAX_ODD_WORDS_PER_PAGE:g}: {common}"
            )
    return problems


def check_with_proselint() -> list[str]:
    """Return proselint's findings in the pages, as `path:line:column: message`."""
    config = json.loads((ROOT / "scripts" / "proselint.json").read_text())
    registry = CheckRegistry()
    registry.register_many(__register__)
    problems = []
    for path in find_pages():
        text = strip_code(path.read_text(encoding="utf8"))
        for result in LintFile(path, content=text).lint(config):
            line, column = result.pos
            found = result.check_result
            problems.append(
                f"{path.relative_to(ROOT)}:{line}:{column}: {found.check_path}: {found.message}"
            )
    return problems


def check_subjects(subjects: Iterable[str]) -> list[str]:
    """Return a message for each commit subject that is too long or not in the imperative mood.

    Args:
      subjects: First lines of commit messages. Merges and reverts that git words itself are skipped.
    """
    problems = []
    for subject in subjects:
        if re.match(r"(Merge (branch|remote|commit)|Revert )", subject):
            continue
        first = re.match(r"[A-Za-z-]*", subject)
        verb = first[0].split("-")[-1].lower() if first else ""
        if len(subject) > MAX_SUBJECT_LENGTH:
            problems.append(
                f"commit subject of {len(subject)} characters, at most {MAX_SUBJECT_LENGTH}: {subject}"
            )
        if verb not in SUBJECT_VERBS:
            problems.append(
                f"commit subject does not start with a known verb in the imperative (SUBJECT_VERBS in scripts/prose.py): {subject}"
            )
    return problems


def read_subjects() -> list[str]:
    """Return the subjects of the commits since `COMMITS_SINCE`, or none outside of a git checkout."""
    command = ["git", "-C", str(ROOT), "log", f"--since={COMMITS_SINCE}", "--format=%s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def check_limits(limits: dict[str, float]) -> list[str]:
    """Return a message for each limit that is higher than in the last commit."""
    command = ["git", "-C", str(ROOT), "show", f"HEAD:{LIMITS.relative_to(ROOT)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    committed = json.loads(done.stdout) if done.returncode == 0 else {}
    return [
        f"scripts/prose_limits.json: the limit of {measure} rose from {committed[measure]} to {limit}; limits only decrease."
        for measure, limit in limits.items()
        if limit > committed.get(measure, limit)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", metavar="MEASURE", help="print all findings of one measure")
    parser.add_argument(
        "--update", action="store_true", help="lower the limits to the measured values"
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="the package to measure")
    parser.add_argument("--subject", help="check the subject of a commit and nothing else")
    options = parser.parse_args(arguments)
    if options.subject is not None:
        return print_problems(check_subjects([options.subject]))
    measurement = Measurement(options.source)
    if options.list:
        print("\n".join(measurement.findings[options.list]))
        return 0
    limits = json.loads(LIMITS.read_text())
    if options.update:
        measured = measurement.compute_table()
        limits = {measure: min(limits[measure], measured[measure]) for measure in limits}
        LIMITS.write_text(json.dumps(limits, indent=2) + "\n")
    problems = check_source(limits, measurement)
    if options.source == SOURCE:
        problems += (
            check_limits(limits)
            + check_pages()
            + check_with_proselint()
            + check_subjects(read_subjects())
        )
    return print_problems(problems)


def print_problems(problems: list[str]) -> int:
    """Print messages to the standard error, and return the exit status."""
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
