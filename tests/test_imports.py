"""Import lead from higher to lower layers of docs/architecture.md, without cycles."""

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "import_graph", Path(__file__).parents[1] / "docs" / "import_graph.py"
)
graph = importlib.util.module_from_spec(spec)
sys.modules["import_graph"] = graph
spec.loader.exec_module(graph)


@pytest.fixture(scope="module")
def imports():
    return graph.find_imports()


def test_imports_have_no_cycle(imports):
    assert not graph.find_cycles({(i.importer, i.imported) for i in imports})


def test_every_module_is_in_a_layer(imports):
    groups = graph.read_groups()
    used = {name for one in imports for name in (one.importer, one.imported)}
    assert not [name for name in used if graph.find_group(name, groups) is None]
    listed = [group for layer in graph.read_layers() for group in layer]
    assert sorted(listed) == sorted(set(groups.values()))
    filled = {graph.find_group(name, groups) for name in used}
    assert filled == set(listed), "the page names a group without modules"


def test_imports_follow_the_layers(imports):
    level = {group: n for n, layer in enumerate(graph.read_layers()) for group in layer}
    groups = graph.read_groups()
    wrong = []
    for one in imports:
        start, end = graph.find_group(one.importer, groups), graph.find_group(one.imported, groups)
        if start != end and level[start] <= level[end]:
            wrong.append(
                f"{one.importer}:{one.line} imports {one.imported}: {start} is not above {end}"
            )
    assert not wrong, "\n".join(wrong)


def test_picture_is_current():
    drawn = graph.PICTURE.read_text(encoding="utf-8")
    assert drawn == graph.draw_picture(), "run python docs/import_graph.py"


def test_find_cycles():
    assert graph.find_cycles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]) == [["a", "b", "c"]]
    assert graph.find_cycles([("a", "b"), ("b", "c"), ("a", "c")]) == []
    # Nodes without successors are visited after others are complete.
    edges = ["61", "72", "65", "62", "74", "41", "75", "40", "63"]
    assert graph.find_cycles([tuple(edge) for edge in edges]) == []


def test_reduce_edges_omits_implied_edges():
    edges = [("a", "b"), ("b", "c"), ("a", "c")]
    assert graph.reduce_edges(edges) == {("a", "b"), ("b", "c")}
