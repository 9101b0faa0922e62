"""Ops that are tried with every dtype (generate_dtypes.py), for the dtype of the result, values and errors."""

UNARY = [
    "abs",
    "negative",
    "sign",
    "square",
    "sqrt",
    "math.rsqrt",
    "math.reciprocal",
    "exp",
    "math.expm1",
    "math.log",
    "math.log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sigmoid",
    "math.log_sigmoid",
    "math.erf",
    "math.lgamma",
    "floor",
    "math.ceil",
    "round",
    "math.is_nan",
    "math.is_finite",
    "math.conj",
    "math.real",
    "math.imag",
    "math.angle",
    "math.l2_normalize",
    "nn.relu",
    "nn.relu6",
    "nn.elu",
    "nn.leaky_relu",
    "nn.softplus",
    "nn.softmax",
    "nn.gelu",
    "logical_not",
    "bitwise.invert",
    "reduce_sum",
    "reduce_mean",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_any",
    "reduce_all",
    "math.reduce_std",
    "math.reduce_variance",
    "reduce_logsumexp",
    "math.reduce_euclidean_norm",
    "argmax",
    "argmin",
    "cumsum",
    "math.cumprod",
    "sort",
    "argsort",
    "norm",
    "linalg.trace",
    "transpose",
    "zeros_like",
    "ones_like",
    "math.count_nonzero",
    "nn.l2_loss",
    "math.reciprocal_no_nan",
    "as_string",
    "linalg.diag",
    "linalg.det",
    "identity",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "math.floordiv",
    "math.floormod",
    "pow",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "greater",
    "less_equal",
    "math.squared_difference",
    "atan2",
    "logical_and",
    "logical_or",
    "math.logical_xor",
    "bitwise.bitwise_and",
    "bitwise.left_shift",
    "bitwise.right_shift",
    "matmul",
    "math.divide_no_nan",
    "math.multiply_no_nan",
    "math.xlogy",
    "truncatediv",
    "searchsorted",
    "complex",
]
DTYPES = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float64", "complex64"]


def arguments(tf, np, op, dtype):
    """The operands of an op, of a dtype."""
    kind = getattr(tf, dtype)
    if dtype == "bool":
        x, y = [[True, False], [True, True]], [[True, True], [False, True]]
    else:
        x, y = [[3, 1], [2, 5]], [[2, 2], [1, 3]]
    x, y = (tf.cast(tf.constant(np.array(v)), kind) for v in (x, y))
    return (x,) if op in UNARY else (x, y)


def function(tf, op):
    """The op of a name."""
    found = tf
    for part in op.split("."):
        found = getattr(found, part)
    return found


def evaluate(tf, np, op, dtype):
    """Return the description of an op's result, or the error."""
    try:
        found = tf.convert_to_tensor(function(tf, op)(*arguments(tf, np, op, dtype)))
    except Exception as error:
        return error
    return described(found, np)


def described(found, np):
    """(name of a tensor's dtype, its values as float64, complex128 or bytes)."""
    array = np.asarray(found.numpy())
    if found.dtype.name == "string":
        return "string", np.array(array.tolist(), "S")
    return found.dtype.name, array.astype("complex128" if found.dtype.is_complex else "float64")
