"""Table of the op names that configurations may contain.

The names are TensorFlow's public names. The table is built from this module and from the op
definitions (`meshflow.core.dispatch.op_names`), independently of any file: a name that is not in
the table is rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch import op_names
from meshflow.core.runtime.import_paths import get_public_package

# Keras names these Python operators by themselves, not by the function that they call.
_OPERATORS = {"math.add": "add", "math.equal": "eq", "math.not_equal": "ne"}

# Namespaces with public names; for a function with several names, configurations contain the last
# one.
_NAMING_NAMESPACES = (
    "",
    "math",
    "nn",
    "linalg",
    "image",
    "strings",
    "signal",
    "bitwise",
    "random",
) + ("quantization",)
NAMESPACES = (*_NAMING_NAMESPACES, "audio", "debugging", "io", "experimental.numpy")

# Functions that are composed of ops. Functions that take functions, assert, print, keep state, or
# read files or clocks are excluded.
_COMPOSITE_FUNCTIONS = {
    "": """
        accumulate_n argmax argmin bitcast boolean_mask broadcast_dynamic_shape broadcast_static_shape cast
        clip_by_global_norm concat constant convert_to_tensor divide dynamic_partition dynamic_stitch
        edit_distance eig eigvals einsum ensure_shape eye fill fingerprint gather gather_nd guarantee_const
        histogram_fixed_width histogram_fixed_width_bins identity_n linspace matvec meshgrid norm one_hot ones
        ones_like pad parallel_stack pow range rank required_space_to_batch_paddings roll saturate_cast
        scalar_mul scatter_nd searchsorted sequence_mask shape shape_n size slice split stack strided_slice
        tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub
        tensor_scatter_nd_update truncatediv truncatemod tuple unique unique_with_counts unstack where zeros
        zeros_like as_string""",
    "math": """
        accumulate_n approx_max_k approx_min_k bincount cast clip_by_global_norm confusion_matrix count_nonzero
        divide floordiv floormod global_norm invert_permutation mod polyval pow saturate_cast scalar_mul
        segment_max segment_mean segment_min segment_prod segment_sum sobol_sample top_k truncatediv truncatemod
        unsorted_segment_max unsorted_segment_mean unsorted_segment_min unsorted_segment_prod
        unsorted_segment_sqrt_n unsorted_segment_sum""",
    "nn": """
        atrous_conv2d atrous_conv2d_transpose avg_pool avg_pool1d avg_pool2d avg_pool3d
        batch_norm_with_global_normalization batch_normalization collapse_repeated compute_accidental_hits
        compute_average_loss conv1d conv1d_transpose conv2d conv2d_transpose conv3d conv3d_transpose
        conv_transpose convolution ctc_beam_search_decoder ctc_greedy_decoder ctc_loss ctc_unique_labels
        depth_to_space depthwise_conv2d depthwise_conv2d_backprop_filter depthwise_conv2d_backprop_input
        dilation2d dropout embedding_lookup embedding_lookup_sparse erosion2d general_dropout log_poisson_loss
        max_pool max_pool1d max_pool2d max_pool3d max_pool_with_argmax moments nce_loss normalize_moments pool
        safe_embedding_lookup_sparse sampled_softmax_loss scale_regularization_loss separable_conv2d
        sigmoid_cross_entropy_with_logits softmax_cross_entropy_with_logits space_to_depth
        sparse_softmax_cross_entropy_with_logits stateless_dropout sufficient_statistics top_k
        weighted_moments""",
    "linalg": """
        banded_triangular_solve eig eigh eigh_tridiagonal einsum eye global_norm inv lu matrix_rank matvec
        normalize qr slogdet solve svd tridiagonal_matmul tridiagonal_solve""",
    "image": """
        adjust_brightness adjust_contrast adjust_gamma adjust_hue adjust_jpeg_quality adjust_saturation
        central_crop combined_non_max_suppression convert_image_dtype crop_and_resize crop_to_bounding_box
        decode_and_crop_jpeg decode_bmp decode_gif decode_image decode_jpeg decode_png draw_bounding_boxes
        encode_jpeg encode_png extract_jpeg_shape extract_patches image_gradients is_jpeg non_max_suppression
        non_max_suppression_overlaps non_max_suppression_padded non_max_suppression_with_scores
        pad_to_bounding_box psnr random_brightness random_contrast random_crop random_flip_left_right
        random_flip_up_down random_hue random_jpeg_quality random_saturation resize resize_with_crop_or_pad
        resize_with_pad rgb_to_grayscale rgb_to_yiq rgb_to_yuv sample_distorted_bounding_box ssim ssim_multiscale
        stateless_random_brightness stateless_random_contrast stateless_random_crop
        stateless_random_flip_left_right stateless_random_flip_up_down stateless_random_hue
        stateless_random_jpeg_quality stateless_random_saturation
        stateless_sample_distorted_bounding_box yiq_to_rgb yuv_to_rgb""",
    "io": """
        decode_and_crop_jpeg decode_base64 decode_bmp decode_compressed decode_csv decode_gif decode_image
        decode_jpeg decode_png decode_raw encode_base64 encode_jpeg encode_png extract_jpeg_shape is_jpeg""",
    "audio": "decode_wav encode_wav",
    "debugging": "check_numerics",
    "strings": """
        unicode_decode unicode_decode_with_offsets unicode_encode unicode_split unicode_split_with_offsets
        unicode_transcode""",
    "signal": """
        dct fftshift frame hamming_window hann_window idct ifftshift inverse_mdct inverse_stft
        inverse_stft_window_fn kaiser_bessel_derived_window kaiser_window linear_to_mel_weight_matrix mdct
        mfccs_from_log_mel_spectrograms overlap_and_add stft vorbis_window""",
    "random": """
        categorical fold_in gamma poisson shuffle split stateless_binomial stateless_categorical stateless_fold_in
        stateless_gamma stateless_normal stateless_poisson stateless_shuffle stateless_split
        stateless_truncated_normal stateless_uniform""",
}


def _list_functions(space: str) -> dict[str, Any]:
    """Return the functions of a namespace of the package by name."""
    module: Any = get_public_package()
    for part in space.split(".") if space else ():
        module = getattr(module, part, None)
    members = {} if module is None else vars(module)
    return {n: v for n, v in members.items() if callable(v) and not isinstance(v, type)}


@functools.cache
def _map_public_names() -> dict[int, str]:
    """Map the id of each function to its public name, for example 'math.add'."""
    return {
        id(value): f"{space}.{name}" if space else name
        for space in _NAMING_NAMESPACES
        for name, value in _list_functions(space).items()
    }


@functools.cache
def get_ops(space: str) -> dict[str, Callable[..., Any]]:
    """Return the ops of a namespace that files may name."""
    allowed = set(_COMPOSITE_FUNCTIONS.get(space, "").split())
    members = _list_functions(space).items()
    return {n: f for n, f in members if n in allowed or op_names.is_registered(f)}


# Names of version 1 functions in Keras 2 configurations that differ from Meshflow's names.
_V1_RENAMES = {"floor_div": "math.floordiv"}
# Arguments of version 1 functions that version 2 renames or, where the value is None, does not
# have.
_V1_ARGUMENTS: dict[str, dict[str, str | None]] = {
    f"nn.{name}": {"filter": "filters", "use_cudnn_on_gpu": None} for name in ("conv2d", "conv3d")
}


def _find_public_op(name: str) -> Callable[..., Any] | None:
    """Return the op with a public name of version 2 or version 1, or None."""
    current = name.removeprefix("compat.v1.")
    is_v1 = current != name
    current = _V1_RENAMES.get(current, current) if is_v1 else current
    space, _, plain = current.rpartition(".")
    function = get_ops(space).get(plain) if space in NAMESPACES else None
    return _find_v1_op(current, function) if is_v1 and function is not None else function


def _find_v1_op(name: str, current: Callable[..., Any]) -> Callable[..., Any]:
    """Return the version 1 counterpart of a version 2 op, or the op itself if there is none."""
    if name in _V1_ARGUMENTS:
        return functools.partial(_call_with_v1_arguments, current, _V1_ARGUMENTS[name])
    function: Any = get_public_package().compat.v1
    for part in name.split("."):
        function = getattr(function, part, None)
    return function or current


def _call_with_v1_arguments(
    function: Callable[..., Any], renames: dict[str, str | None], *args: Any, **kwargs: Any
) -> Any:
    named = {renames.get(key, key): value for key, value in kwargs.items()}
    return function(*args, **{k: v for k, v in named.items() if k is not None and v is not None})


def get_public_name(function: Callable[..., Any]) -> str:
    """Return the name of a function in configurations."""
    name = _map_public_names().get(id(function)) or op_names.get_name(function)
    return name or f"{function.__module__.removeprefix('meshflow.')}.{function.__name__}"


def has_public_name(function: Callable[..., Any]) -> bool:
    """Check whether a function has a public name."""
    return id(function) in _map_public_names()


def find_ops_by_suffix(plain: str) -> dict[str, Callable[..., Any]]:
    """Return the ops with a given last name component that files may name, by public name."""
    spaces = {space: get_ops(space) for space in _NAMING_NAMESPACES}
    return {f"{s}.{plain}" if s else plain: ops[plain] for s, ops in spaces.items() if plain in ops}


def get_operator_name(symbol: str) -> str | None:
    """Return the name of a Python operator, for example '__operators__.add', or None."""
    return f"__operators__.{_OPERATORS[symbol]}" if symbol in _OPERATORS else None


def find_function(name: str) -> Callable[..., Any]:
    """Return the op with a public name.

    Args:
      name: Result of `get_public_name`, or TensorFlow's name.

    Raises:
      ValueError: If there is no such op; functions that are not ops cannot be found by name.
    """
    operators = {f"__operators__.{short}": full for full, short in _OPERATORS.items()}
    key = str(name).removeprefix("tf.").removeprefix("meshflow.")
    key = operators.get(key, key)
    function = _find_public_op(key) or op_names.find_function(key)
    if function is None:
        raise ValueError(
            f"There is no op tf.{key} that a configuration may name: only ops that compute a result from their "
            "arguments are found by name. Pass other functions in `custom_objects`."
        )
    return function
