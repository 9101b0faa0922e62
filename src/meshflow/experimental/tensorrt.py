"""`tf.experimental.tensorrt`: run saved models with TensorRT.

ONNX Runtime's TensorRT provider runs them. Without TensorRT, ONNX Runtime runs the same file on the
GPU or the CPU, and a warning is logged.
"""

from __future__ import annotations

import collections
import json
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.errors import DataLossError, PermissionDeniedError
from meshflow.core.values.tensor import Tensor
from meshflow.deployment.deployable_function import trace_saved_model
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import StrPath
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_contained
from meshflow.onnx.exporter import convert_to_onnx
from meshflow.onnx.lowering import load_onnx
from meshflow.onnx.sessions import OnnxSession, choose_providers, load_runtime
from meshflow.saved_model.loader import TENSORRT_FILE, TENSORRT_MODEL
from meshflow.saved_model.programs.foreign_modules import is_own_program, remember_own_program
from meshflow.saved_model.programs.restored_signatures import SignatureMap

__all__ = ["ConversionParams", "Converter", "TrtConversionParams", "TrtPrecisionMode", "load"]

_log = logging.getLogger("meshflow")
_ENGINES_FOLDER = "engines"


class TrtPrecisionMode:
    """Names of the precisions that TensorRT may compute in."""

    FP32 = "FP32"
    FP16 = "FP16"
    INT8 = "INT8"

    @staticmethod
    def supported_precision_modes() -> list[str]:
        """Return the supported names, in upper and lower case."""
        modes = ["FP32", "FP16", "INT8"]
        return modes + [m.lower() for m in modes]


class TrtConversionParams(NamedTuple):
    """Conversion settings.

    Attributes:
      max_workspace_size_bytes: Memory that TensorRT may use at run time, in bytes.
      precision_mode: 'FP32', 'FP16' or 'INT8'.
      minimum_segment_size: Minimum number of nodes of a subgraph that TensorRT runs.
      maximum_cached_engines: Ignored; all engines are cached in the folder.
      use_calibration: Whether INT8 ranges are calibrated with samples.
      allow_build_at_runtime: Ignored; engines are built for new shapes on demand.
    """

    max_workspace_size_bytes: int = 1 << 30
    precision_mode: str = TrtPrecisionMode.FP32
    minimum_segment_size: int = 3
    maximum_cached_engines: int = 1
    use_calibration: bool = True
    allow_build_at_runtime: bool = True


ConversionParams = TrtConversionParams
_DEFAULTS = TrtConversionParams()
_STRATEGIES = ("Range", "Optimal", "Range+Optimal", "ImplicitBatchModeCompatible")


class Converter:
    """Converter of a saved model for TensorRT.

    Args:
      input_saved_model_dir: Folder of the saved model.
      input_saved_model_tags: Ignored.
      input_saved_model_signature_key: Signature to convert. Default: 'serving_default'.
      use_dynamic_shape: Ignored; the batch size is always dynamic.
      dynamic_shape_profile_strategy: 'Range', 'Optimal', 'Range+Optimal' or
        'ImplicitBatchModeCompatible'; engines always cover the full range of shapes of `build`.
      max_workspace_size_bytes: Memory that TensorRT may use at run time, in bytes.
      precision_mode: 'FP32', 'FP16' or 'INT8', in upper or lower case.
      minimum_segment_size: Minimum number of nodes of a subgraph that TensorRT runs, or -1.
      maximum_cached_engines: Ignored; all engines are cached in the folder.
      use_calibration: Whether INT8 ranges are calibrated with samples.
      allow_build_at_runtime: Ignored; engines are built for new shapes on demand.
      conversion_params: A `ConversionParams` that replaces the six previous arguments.

    Raises:
      ValueError: The precision or strategy is unknown, or a size is out of range.

    Example:
      >>> tf.experimental.tensorrt.ConversionParams(precision_mode="FP16").precision_mode
      'FP16'
    """

    def __init__(
        self,
        input_saved_model_dir: StrPath | None = None,
        input_saved_model_tags: Sequence[str] | str | None = None,
        input_saved_model_signature_key: str | None = None,
        use_dynamic_shape: bool | None = None,
        dynamic_shape_profile_strategy: str | None = None,
        max_workspace_size_bytes: int = _DEFAULTS.max_workspace_size_bytes,
        precision_mode: str = _DEFAULTS.precision_mode,
        minimum_segment_size: int = _DEFAULTS.minimum_segment_size,
        maximum_cached_engines: int = _DEFAULTS.maximum_cached_engines,
        use_calibration: bool = _DEFAULTS.use_calibration,
        allow_build_at_runtime: bool = _DEFAULTS.allow_build_at_runtime,
        conversion_params: TrtConversionParams | None = None,
    ) -> None:
        if input_saved_model_dir is None:
            raise ValueError("Converter: input_saved_model_dir is required.")
        self._folder = Path(input_saved_model_dir)
        self._signature = input_saved_model_signature_key or "serving_default"
        self._params = conversion_params or TrtConversionParams(
            max_workspace_size_bytes,
            precision_mode,
            minimum_segment_size,
            maximum_cached_engines,
            use_calibration,
            allow_build_at_runtime,
        )
        _check_params(self._params)
        if dynamic_shape_profile_strategy not in (None, *_STRATEGIES):
            raise ValueError(
                f"profile_strategy {dynamic_shape_profile_strategy!r} is not supported. It should be one of {list(_STRATEGIES)}."
            )
        self._mode = self._params.precision_mode.upper()
        self._content: bytes | None = None
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._work = tempfile.TemporaryDirectory(prefix="tensorrt-")

    def convert(
        self, calibration_input_fn: Callable[[], Iterable[Any]] | None = None
    ) -> OnnxSession:
        """Convert the model.

        Args:
          calibration_input_fn: For INT8: function that yields lists or dictionaries of arrays.

        Returns:
          A function of tensors by name.

        Raises:
          ValueError: INT8 calibration lacks samples, or samples were passed for another precision.
          RuntimeError: The model is already converted.
          ImportError: The extra `onnx` is not installed.
        """
        if self._content is not None:
            raise RuntimeError("Converter.convert was already called: create a new Converter.")
        needs_samples = self._mode == "INT8" and self._params.use_calibration
        if needs_samples and calibration_input_fn is None:
            raise ValueError(
                "Should specify calibration_input_fn because INT8 calibration is needed."
            )
        if calibration_input_fn is not None and not needs_samples:
            raise ValueError("Should not specify calibration_input_fn because INT8 calibration is not needed.")  # fmt: skip
        content = convert_to_onnx(trace_saved_model(str(self._folder), self._signature))
        if calibration_input_fn is not None:
            content = _quantize(content, calibration_input_fn)
        self._content = content
        return self._make_session()

    def _make_session(self) -> OnnxSession:
        assert self._content is not None
        folder = Path(self._work.name) / _ENGINES_FOLDER
        folder.mkdir(exist_ok=True)
        return OnnxSession(self._content, choose_providers(self._make_options(folder)))

    def _make_options(self, folder: Path) -> dict[str, Any]:
        return {
            "trt_max_workspace_size": self._params.max_workspace_size_bytes,
            "trt_min_subgraph_size": max(self._params.minimum_segment_size, 1),
            "trt_fp16_enable": self._mode == "FP16",
            "trt_int8_enable": self._mode == "INT8",
            "trt_engine_cache_enable": True,
            "trt_engine_cache_path": str(folder),
            **_make_shape_profiles(self._shapes),
        }

    def build(self, input_fn: Callable[[], Iterable[Any]] | None) -> None:
        """Build engines for the range of sample shapes by running the samples.

        Args:
          input_fn: Function that yields samples, as lists or dictionaries of arrays.

        Raises:
          RuntimeError: The model is not converted yet, or `input_fn` is None.
          NotImplementedError: Engines are already built.
          ValueError: `input_fn` yields no sample.
        """
        self._require_content("build")
        if input_fn is None:
            raise RuntimeError(
                "Converter.build requires input_fn: engines are built for the shapes of its samples."
            )
        if self._shapes:
            raise NotImplementedError("Converter.build was already called; call it once.")
        session = self._make_session()
        samples = [_make_feed(session, sample) for sample in input_fn()]
        if not samples:
            raise ValueError("input_fn yielded no samples, but engines are built for their shapes.")
        for sample in samples:
            for name, array in sample.items():
                self._shapes.setdefault(name, []).append(array.shape)
        session = self._make_session()
        for sample in samples:
            session.run_arrays(sample)

    def _require_content(self, method: str) -> bytes:
        if self._content is None:
            raise RuntimeError(f"Converter.{method} requires convert() to be called first.")
        return self._content

    def save(self, output_saved_model_dir: StrPath, save_gpu_specific_engines: bool = True, options: object = None) -> None:  # fmt: skip
        """Save the model with `model.onnx` and the engines; `tf.saved_model.load` then runs them.

        Args:
          output_saved_model_dir: Folder to write to.
          save_gpu_specific_engines: Whether to save the engines, which require the same GPU type.
          options: Ignored.

        Raises:
          RuntimeError: The model is not converted yet.
        """
        content = self._require_content("save")
        target = Path(output_saved_model_dir)
        if target.resolve() != self._folder.resolve():
            shutil.copytree(self._folder, target, dirs_exist_ok=True)
        with replace_file(target / TENSORRT_MODEL) as file:
            file.write(content)
        engines = Path(self._work.name) / _ENGINES_FOLDER
        if save_gpu_specific_engines and engines.is_dir():
            shutil.copytree(engines, target / _ENGINES_FOLDER, dirs_exist_ok=True)
        for file_content in (content, *_read_engines(target)):
            remember_own_program(file_content)
        settings = {
            "params": self._params._asdict(),
            "shapes": self._shapes,
            "signature": self._signature,
        }
        # `load` ignores folders without this file, so it is written last.
        with replace_file(target / TENSORRT_FILE, "w") as file:
            file.write(json.dumps(settings))

    def summary(
        self, line_length: int = 160, detailed: bool = True, print_fn: Callable[[str], Any] | None = None
    ) -> None:  # fmt: skip
        """Print the operators of the converted model and the execution providers.

        Args:
          line_length: Maximum length of a line.
          detailed: Whether to count each type of node.
          print_fn: Function that prints a line. Default: `print`.

        Raises:
          RuntimeError: The model is not converted yet.
        """
        write = print_fn or print
        model = load_onnx().load_from_string(self._require_content("summary"))
        session = self._make_session()
        counts = collections.Counter(node.op_type for node in model.graph.node)
        runs = ", ".join(p.removesuffix("ExecutionProvider") for p in session.providers)
        write(
            f"Precision: {self._mode}. Run by: {runs}. Nodes: {sum(counts.values())}"[:line_length]
        )
        for name, spec in session.structured_input_signature[1].items():
            write(f"input {name}: {spec.dtype.name}{spec.shape.as_list()}"[:line_length])
        if detailed:
            for code, count in counts.most_common():
                write(f"{code:<24}{count:>6}"[:line_length])


def load(export_dir: StrPath, trusted: bool = False) -> OnnxSession:
    """Load a model that `Converter.save` wrote, as a function of tensors by name.

    Args:
      export_dir: The folder.
      trusted: Whether you trust the author of the folder: ONNX Runtime and TensorRT do not protect
        this process from a hostile file.

    Raises:
      FileNotFoundError: The folder has no converted model.
      DataLossError: The files are damaged.
      PermissionDeniedError: Another user converted the model, and `trusted` is False.
    """
    return _load_session(Path(export_dir), trusted)[1]


def replace_signature(folder: str, root: Any, trusted: bool = False) -> None:
    """Replace the converted signature of a loaded model by a session, if ONNX Runtime is available.

    Args:
      folder: Folder of the saved model.
      root: Loaded model with the attribute `signatures`.
      trusted: As in `load`.
    """
    try:
        signature, session = _load_session(Path(folder), trusted)
    except (ImportError, PermissionDeniedError) as error:
        _log.warning("%s was converted for TensorRT, but runs without it: %s", folder, error)
        return
    root.signatures = SignatureMap({**root.signatures, signature: session})


def _read_engines(folder: Path) -> list[bytes]:
    """Read the engines of a converted model, which contain code of a GPU."""
    files = sorted((folder / _ENGINES_FOLDER).glob("*"))
    return [Path(check_contained(file, folder)).read_bytes() for file in files]


def _load_session(folder: Path, trusted: bool) -> tuple[str, OnnxSession]:
    """Return the name of the converted signature and its session."""
    if not (folder / TENSORRT_FILE).is_file() or not (folder / TENSORRT_MODEL).is_file():
        raise FileNotFoundError(f"{folder} has no {TENSORRT_MODEL}; expected a folder that Converter.save wrote.")  # fmt: skip
    content = Path(check_contained(folder / TENSORRT_MODEL, folder)).read_bytes()
    if not (trusted or is_own_program(content)):
        raise PermissionDeniedError(
            f"another user converted {folder / TENSORRT_MODEL}. If you trust its author, load it with trusted=True."
        )
    are_engines_trusted = trusted or all(map(is_own_program, _read_engines(folder)))
    if not are_engines_trusted:
        _log.warning("Building the engines of %s again; trusted=True uses those of others.", folder)
    try:
        saved = parse_json(Path(check_contained(folder / TENSORRT_FILE, folder)).read_text())
        signature = saved.get("signature")
        params = TrtConversionParams(**saved["params"])
        converter = Converter(str(folder), None, signature, conversion_params=params)
        for name, shapes in saved["shapes"].items():
            converter._shapes[str(name)] = [tuple(int(d) for d in shape) for shape in shapes]
        work = converter._work
        engines = folder / _ENGINES_FOLDER if are_engines_trusted else Path(work.name)
        options = converter._make_options(engines)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLossError(f"{folder / TENSORRT_FILE} is damaged: {error!r}.") from error
    # A model in memory refers to no other file.
    session = OnnxSession(content, choose_providers(options))
    weakref.finalize(session, work.cleanup)
    return converter._signature, session


def _check_params(params: TrtConversionParams) -> None:
    modes = TrtPrecisionMode.supported_precision_modes()
    if params.precision_mode not in modes:
        raise ValueError(
            f"precision mode {params.precision_mode!r} is not supported. It should be one of {modes}."
        )
    if params.minimum_segment_size <= 0 and params.minimum_segment_size != -1:
        raise ValueError(
            f"minimum segment size should be positive or -1, got {params.minimum_segment_size}."
        )


def _make_shape_profiles(shapes: Mapping[str, list[tuple[int, ...]]]) -> dict[str, str]:
    """Return the minimum, usual and maximum input shapes as options of the TensorRT provider."""
    if not shapes:
        return {}

    def format_shapes(choose: Callable[[list[int]], int]) -> str:
        parts = []
        for name, sample_shapes in shapes.items():
            sizes = [str(choose(list(d))) for d in zip(*sample_shapes, strict=True)]
            parts.append(f"{name}:{'x'.join(sizes)}")
        return ",".join(parts)

    usual = format_shapes(lambda sizes: sorted(sizes)[len(sizes) // 2])
    return {
        "trt_profile_min_shapes": format_shapes(min),
        "trt_profile_opt_shapes": usual,
        "trt_profile_max_shapes": format_shapes(max),
    }


def _make_feed(session: OnnxSession, sample: Any) -> dict[str, np.ndarray]:
    """Convert a sample to arrays by input name."""
    specs = session.structured_input_signature[1]
    if not isinstance(sample, Mapping):
        many = isinstance(sample, (list, tuple)) and not isinstance(sample, Tensor)
        sample = dict(zip(specs, sample if many else [sample], strict=True))
    if set(sample) != set(specs):
        raise ValueError(f"A sample has the inputs {sorted(sample)}; expected {sorted(specs)}.")
    return {n: np.asarray(sample[n]).astype(spec.dtype.dtype) for n, spec in specs.items()}


def _quantize(content: bytes, samples: Callable[[], Iterable[Any]]) -> bytes:
    """Return the model with int8 quantization, calibrated with samples."""
    quantization = load_runtime(".quantization")
    providers = choose_providers(None)
    session = OnnxSession(content, providers)
    feeds = iter([_make_feed(session, sample) for sample in samples()])

    class Samples(quantization.CalibrationDataReader):  # type: ignore[name-defined]
        """Reader that returns one sample after the other."""

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(content)
        quantization.quantize_static(
            str(source), str(target), Samples(), per_channel=True,
            # Processors without VNNI add two products in 16 bits, which overflow unless weights have 7 bits.
            reduce_range=providers == ["CPUExecutionProvider"],
            quant_format=quantization.QuantFormat.QDQ,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
        )  # fmt: skip
        return target.read_bytes()
