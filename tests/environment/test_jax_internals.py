"""Test that only one file uses private names of JAX."""

import ast
import importlib.util
import tomllib
from pathlib import Path

import jax
import pytest

import forked
from meshflow.environment import jax_internals

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "meshflow"
DOOR = SOURCE / "environment" / "jax_internals.py"
# Runs in a separate process, without Meshflow.
ALONE = SOURCE / "distribute" / "cluster" / "coordination_service.py"
BEHIND = ("jax._src", "jax.interpreters", "jax.extend", "jaxlib")


def get_dotted_name(node):
    """Return the dotted name of attributes; an empty string for other expressions."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def names_behind(tree):
    """The names of JAX's inner modules that a file imports, or reaches by attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found = [get_dotted_name(node)]
        else:
            continue
        yield from (n for n in found if any(n == b or n.startswith(f"{b}.") for b in BEHIND))


def public_names(body):
    """The public names that statements define, or import from JAX in the `try` statement."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from public_names(node.body)
            imports = [n for n in node.body if isinstance(n, ast.ImportFrom)]
            names = [alias.asname or alias.name for n in imports for alias in n.names]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


PUBLIC = set(public_names(ast.parse(DOOR.read_text()).body))


def test_private_names_occur_in_no_other_file():
    texts = {p: p.read_text() for p in SOURCE.rglob("*.py") if p not in (DOOR, ALONE)}
    found = {p: set(names_behind(ast.parse(text))) for p, text in texts.items() if "jax" in text}
    assert not {str(p.relative_to(SOURCE)): names for p, names in found.items() if names}


def test_private_names_exist():
    text = "import jaxlib\nfrom jax._src import core\nfrom jax import extend\njax.interpreters.mlir.x\n"
    assert set(names_behind(ast.parse(text))) >= {"jaxlib", "jax._src.core", "jax.extend"}
    assert not set(names_behind(ast.parse("import jax\njax.core.Tracer\njax.extending")))


def test_every_private_name_is_used_and_documented():
    used = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if path == DOOR or "jax_internals" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module == "meshflow.environment.jax_internals"
            ):
                used.update(alias.name for alias in node.names)
            if isinstance(node, ast.Attribute) and get_dotted_name(node.value) == "jax_internals":
                used.add(node.attr)
    assert used == PUBLIC - {"DIFFERENCES", "Difference"}
    assert not [n for n in used if f"`{n}`" not in jax_internals.__doc__]


def test_the_supported_versions_are_the_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{p}{jax_internals.SUPPORTED}" for p in ("jax", "jaxlib")} <= {
        *project["dependencies"]
    }


def test_the_documentation_shows_the_differences():
    lines = [f"| {d.version} | {d.change} | {d.handled_by} |" for d in jax_internals.DIFFERENCES]
    text = (ROOT / "docs" / "jax.md").read_text()
    assert "\n".join(lines) in text
    assert f"JAX {jax_internals.SUPPORTED}" in text


def test_files_that_handle_differences_exist():
    for difference in jax_internals.DIFFERENCES:
        name = difference.handled_by.strip("`")
        places = (ROOT, SOURCE)
        assert name in PUBLIC or any((p / name).exists() for p in places), name


@pytest.mark.parametrize(
    "module, name",
    [(jax._src.core, "trace_state_clean"), (jax_internals.mlir, "_lowerings")],
    ids=["function", "attribute"],
)
def test_missing_private_name_names_supported_versions(monkeypatch, module, name):
    monkeypatch.delattr(module, name)
    spec = importlib.util.spec_from_file_location("another_door", DOOR)
    with pytest.raises(ImportError, match=rf"{name}.*works with JAX {jax_internals.SUPPORTED}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


BEFORE_WRITES = """
import sys
import jax
from meshflow.environment import jax_internals
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax_internals.call_before_cache_writes(lambda: print("written"))
program = jax.jit(lambda x: x * 3 + 1).lower(1.0)
for _ in range(2):
    program.compile()
"""


def test_a_function_is_called_before_a_program_is_cached(tmp_path):
    # The second program is read from the cache.
    assert forked.run(BEFORE_WRITES, str(tmp_path)) == [0, "written\n"]
    assert list(tmp_path.iterdir())
