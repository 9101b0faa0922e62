"""Select the tests nearest to a change that fit in a time limit: `make quick`.

Run as `python tests/nearest.py [AREA...]`; prints paths for pytest. Tests and modules that changed
against main (on main itself: in the last commit) come first, then the tests that name definitions
of the changed modules, then the rest of their areas, the shortest first.
"""

import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from tiers import seconds_of_files

# Seconds of tests on each of two workers, and of a file that no run has timed.
BUDGET = 160
UNKNOWN = 10
# Areas of packages without a test folder of the same name; all others are namespaces of ops.
TESTED_IN = {
    "autograph": ["core"],
    "experimental": ["tnp"],
    "files": ["io"],
    "numpy": ["tnp"],
    "placement": ["dtensor", "distribute"],
    "tpu": ["distribute"],
    "train": ["checkpoint", "keras"],
}


def find_changed_files(root=ROOT):
    """Paths of Python files that differ from main, or from the commit before."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.split("\n") if done.returncode == 0 else []

    base = [*git("merge-base", "HEAD", "main"), *git("merge-base", "HEAD", "origin/main")]
    base = next((b for b in base if b), "HEAD")
    found = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    if not any(found):
        found = git("diff", "--name-only", "HEAD~1")
    return [p for p in found if p.endswith(".py") and (root / p).is_file()]


def areas_of(path):
    """The folders of `tests/` that try a file."""
    parts = path.split("/")
    if parts[0] == "tests":
        return [parts[1]] if len(parts) > 2 else []
    if parts[:2] != ["src", "meshflow"]:
        return []
    name = parts[2].removesuffix(".py")
    return [name] if (ROOT / "tests" / name).is_dir() else TESTED_IN.get(name, ["ops"])


def names_in(source):
    """Return the public names that a module defines."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name for n in ast.parse(source).body if isinstance(n, kinds) and n.name[0] != "_"}


def relevance(text, module, names):
    """Rate how closely a test names a module: its path counts as many names."""
    words = set(re.findall(r"\w+", text))
    return 5 * (module in text) + len(names & words)


def rank_tests(paths, areas=(), root=ROOT):
    """Files to run, the nearest first, from the paths that changed and areas asked for."""
    areas = {*areas, *(a for p in paths for a in areas_of(p))}
    first = [p for p in paths if p.startswith("src/") or _is_test(p)]
    modules = []
    for path in paths:
        if path.startswith("src/"):
            dotted = ".".join(pathlib.PurePath(path).with_suffix("").parts[1:])
            modules.append((dotted.removesuffix(".__init__"), names_in((root / path).read_text())))
    scores = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = file.relative_to(root).as_posix()
        text = file.read_text()
        near = sum(relevance(text, module, names) for module, names in modules)
        if path not in first and (near or areas & set(areas_of(path))):
            # Few names in a file far away are chance.
            scores[path] = near + 3 * bool(areas & set(areas_of(path)))
    return first, scores


def choose_tests(first, scores, seconds, budget=BUDGET):
    """The files to run: all that changed, then the most relevant that still fit."""
    picked = list(first)
    left = budget - sum(seconds.get(p, UNKNOWN) for p in first if _is_test(p))
    for path in sorted(scores, key=lambda p: (-scores[p], seconds.get(p, UNKNOWN), p)):
        if seconds.get(path, UNKNOWN) <= left:
            picked.append(path)
            left -= seconds.get(path, UNKNOWN)
    return picked


def _is_test(path):
    return path.split("/")[-1].startswith("test_")


def main(areas):
    paths = [] if areas else find_changed_files()
    first, scores = rank_tests(paths, areas)
    if areas and not scores:
        sys.exit(f"no tests of {' '.join(areas)}; areas are the folders of tests/")
    if not first and not scores:
        # No change, or a change that affects every test.
        first, scores = rank_tests(
            [], {f.parent.name for f in (ROOT / "tests").glob("*/test_*.py")}
        )
    picked = choose_tests(first, scores, seconds_of_files())
    known = len(first) + len(scores)
    print(f"{len(picked)} of {known} files that this change may break", file=sys.stderr)
    print("\n".join(picked))


if __name__ == "__main__":
    main(sys.argv[1:])
