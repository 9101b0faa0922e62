import pytest

from meshflow.environment import optional_packages


def test_a_missing_package_names_its_extra():
    with pytest.raises(ImportError) as told:
        optional_packages.import_extra(
            "meshflow_no_such_package.part", "export", "This needs the package nothing"
        )
    assert str(told.value) == "This needs the package nothing: pip install 'meshflow-tf[export]'."


def test_a_missing_package_of_the_base_install_names_the_distribution():
    with pytest.raises(ImportError, match=r"needs nothing: pip install meshflow-tf\.$"):
        optional_packages.import_extra("meshflow_no_such_package", None, "This needs nothing")


def test_parts_of_packages():
    assert optional_packages.import_extra("xml.dom", "export", "").Node.ELEMENT_NODE == 1
