"""Imports lead down the floors of docs/architecture.md, and nowhere in a circle."""

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
def found():
    return graph.imports()


def test_no_circle_between_files(found):
    assert not graph.circles({(i.importer, i.imported) for i in found})


def test_every_file_is_in_a_room(found):
    table = graph.rooms()
    used = {name for one in found for name in (one.importer, one.imported)}
    assert not [name for name in used if graph.room_of(name, table) is None]
    listed = [room for floor in graph.floors() for room in floor]
    assert sorted(listed) == sorted(set(table.values()))
    filled = {graph.room_of(name, table) for name in used}
    assert filled == set(listed), "the page names a room that is empty"


def test_imports_lead_down(found):
    level = {room: n for n, floor in enumerate(graph.floors()) for room in floor}
    table = graph.rooms()
    wrong = []
    for one in found:
        start, end = graph.room_of(one.importer, table), graph.room_of(one.imported, table)
        if start != end and level[start] <= level[end]:
            wrong.append(
                f"{one.importer}:{one.line} imports {one.imported}: {start} is not above {end}"
            )
    assert not wrong, "\n".join(wrong)


def test_the_picture_shows_the_imports():
    drawn = graph.PICTURE.read_text(encoding="utf-8")
    assert drawn == graph.picture(), "run python docs/import_graph.py"


def test_circles_are_found():
    assert graph.circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]) == [["a", "b", "c"]]
    assert graph.circles([("a", "b"), ("b", "c"), ("a", "c")]) == []
    # Names that lead nowhere are met after others are finished.
    ways = ["61", "72", "65", "62", "74", "41", "75", "40", "63"]
    assert graph.circles([tuple(way) for way in ways]) == []


def test_arrows_that_a_longer_way_stands_for_are_left_out():
    assert graph.needed([("a", "b"), ("b", "c"), ("a", "c")]) == {("a", "b"), ("b", "c")}
