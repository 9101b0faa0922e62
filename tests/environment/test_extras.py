import pytest

from meshflow.environment import optional_packages


def test_a_missing_package_names_its_extra():
    with pytest.raises(ImportError) as told:
        optional_packages.import_extra(
            "meshflow_no_such_package.part", "records", "This needs the package nothing"
        )
    assert str(told.value) == "This needs the package nothing: pip install 'meshflow[records]'."


def test_parts_of_packages():
    assert optional_packages.import_extra("xml.dom", "records", "").Node.ELEMENT_NODE == 1
