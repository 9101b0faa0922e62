"""No exception of C++ passes to who calls from C: it would end the process."""

import re
from pathlib import Path

import pytest

from meshflow import kernels

SOURCES = sorted(Path(kernels.__file__).parent.glob("*.cc"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_c_functions_and_handlers_catch_all_exceptions(path):
    source = path.read_text()
    for function in re.findall(r'extern "C"[^;{]*', source):
        assert function.rstrip().endswith("noexcept"), function
    handlers = re.findall(r"XLA_FFI_DEFINE_HANDLER_SYMBOL\(\s*(\w+), (\w+)(?:<\w+>)?,", source)
    assert len(handlers) == source.count("XLA_FFI_DEFINE_HANDLER")
    for symbol, function in handlers:
        guarded = rf'^ffi::Error {function}\([^{{]*\{{\n  return (?:meshflow::)?handled\("'
        assert re.search(guarded, source, re.MULTILINE), symbol


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_parallel_loops_allocate_no_heap_memory(path):
    for part in re.findall(
        r"#pragma omp parallel(?! for).*?\n( *)\{\n(.*?)\n\1\}", path.read_text(), re.DOTALL
    ):
        assert "std::vector<" not in part[1]
        assert "dnnl::stream stream(" not in part[1]
