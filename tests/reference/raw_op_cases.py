"""Calls of raw ops; raw_ops.json has TensorFlow's results."""

import numpy as np

_GRID = np.array([[0.3, -1.2, 2.5], [-0.7, 1.1, 0.4]], np.float32)
_IMAGE = (np.arange(32).reshape(1, 4, 4, 2) ** 2 % 13 / 7).astype(np.float32)
# Values that calls refer to.
VALUES = {
    "np": np,
    "x": _GRID,
    "y": _GRID[:, ::-1].copy(),
    "p": np.abs(_GRID) + 0.1,
    "u": np.tanh(_GRID),
    "b": _GRID > 0,
    "i": np.array([[3, 1, 4], [1, 5, 9]], np.int32),
    "j": np.array([[2, 7, 1], [8, 2, 8]], np.int32),
    "m": np.array([[4.0, 1.0], [1.0, 3.0]], np.float32),
    "c": (_GRID + 1j * _GRID[:, ::-1]).astype(np.complex64),
    "v": np.array([3.0, 1.0, 2.0, 1.0], np.float32),
    "n": np.array([3, 1, 2, 1], np.int32),
    "s": np.array([b"ab", b"C d"], object),
    "a": _IMAGE,
    "f": (np.arange(16).reshape(2, 2, 2, 2) % 5 / 3).astype(np.float32),
    "boxes": np.array([[0, 0, 1, 1], [0, 0, 0.9, 1], [0.5, 0.5, 1, 1]], np.float32),
}
_UNARY = (
    *[
        "Abs",
        "Acos=u",
        "Acosh=p+1",
        "Angle=c",
        "Asin=u",
        "Asinh",
        "Atan",
        "Atanh=u",
        "BesselI0",
        "BesselI0e",
        "BesselI1",
        "BesselI1e",
        "Ceil",
    ],
    *[
        "ComplexAbs=c",
        "Conj=c",
        "Cos",
        "Cosh",
        "Digamma=p",
        "Erf",
        "Erfc",
        "Erfinv=u",
        "Exp",
        "Expm1",
        "Floor",
        "Imag=c",
        "Inv",
        "IsFinite",
        "IsInf",
        "IsNan",
    ],
    *[
        "Lgamma=p",
        "Log=p",
        "Log1p=p",
        "Neg",
        "Ndtri=p/4",
        "Real=c",
        "Reciprocal",
        "Rint",
        "Round",
        "Rsqrt=p",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
    ],
    *[
        "Sqrt=p",
        "Square",
        "Tan",
        "Tanh",
        "OnesLike",
        "ZerosLike",
        "Invert=i",
        "InvertPermutation=np.argsort(n).astype('int32')",
    ],
    *[
        "BesselJ0",
        "BesselJ1",
        "BesselK0=p",
        "BesselK1=p",
        "BesselY0=p",
        "Dawsn",
        "Expint=p",
        "FresnelCos",
        "FresnelSin",
        "Spence=p",
    ],
)
_BINARY = (
    *[
        "Add",
        "AddV2",
        "Atan2=yx",
        "BitwiseAnd=ij",
        "BitwiseOr=ij",
        "BitwiseXor=ij",
        "Div",
        "DivNoNan",
        "Equal",
        "FloorDiv=ij",
        "FloorMod=ij",
    ],
    *[
        "Greater",
        "GreaterEqual",
        "LeftShift=ij",
        "Less",
        "LessEqual",
        "LogicalAnd=bb",
        "LogicalOr=bb",
        "Maximum",
        "Minimum",
        "Mod=ij",
    ],
    *[
        "Mul",
        "MulNoNan",
        "NotEqual",
        "Pow=px",
        "RealDiv",
        "RightShift=ij",
        "SquaredDifference",
        "Sub",
        "TruncateDiv=ij",
    ],
    *["TruncateMod=ij", "Xdivy", "Xlog1py=xp", "Xlogy=xp", "ApproximateEqual", "BroadcastArgs"],
)
CALLS = [
    *(
        f"{n.partition('=')[0]}(x={n.partition('=')[2] or 'x'})"
        for n in _UNARY
        if not n.startswith(("Angle", "ComplexAbs", "Conj", "Imag", "Real="))
    ),
    *(f"{n}(input=c)" for n in ("Angle", "Conj", "Imag", "Real")),
    "ComplexAbs(x=c)",
    *(
        f"{n.partition('=')[0]}({'s0' if n == 'BroadcastArgs' else 'y' if n.startswith('Atan2') else 'x'}="
        f"{(n.partition('=')[2] or 'xy')[0]}, {'s1' if n == 'BroadcastArgs' else 'x' if n.startswith('Atan2') else 'y'}="
        f"{(n.partition('=')[2] or 'xy')[1]})".replace("s0=x", "s0=n[:1]").replace(
            "s1=y", "s1=n[:2]"
        )
        for n in _BINARY
    ),
    *(
        f"{n}(input=x, axis=[1], keep_dims=True)"
        for n in ("Max", "Mean", "Min", "Prod", "Sum", "EuclideanNorm")
    ),
    *(f"{n}(input=b, axis=0)" for n in ("All", "Any")),
    "LogicalNot(x=b)",
    "NextAfter(x1=x, x2=y)",
    "AddN(inputs=[x, y, x])",
    "ArgMax(input=x, dimension=1)",
    "ArgMin(input=x, dimension=0, output_type=tf.int32)",
    "BatchMatMulV2(x=[x, y], y=[x.T, y.T])",
    "BatchMatMulV2(x=[x, y], y=[x, y], adj_y=True)",
    "Betainc(a=p, b=p, x=np.abs(u))",
    "Bincount(arr=n, size=5, weights=v)",
    "Bitcast(input=x, type=tf.int32)",
    "BroadcastTo(input=v, shape=[2, 4])",
    "Bucketize(input=x, boundaries=[0.0, 1.0])",
    "Cast(x=x, DstT=tf.int32)",
    "Cholesky(input=m)",
    "ClipByValue(t=x, clip_value_min=0.0, clip_value_max=1.0)",
    "Complex(real=x, imag=y)",
    "ConcatV2(values=[x, y], axis=1)",
    "Concat(concat_dim=0, values=[x, y])",
    "ConjugateTranspose(x=c, perm=[1, 0])",
    "Cross(a=x, b=y)",
    "Cumprod(x=x, axis=1, exclusive=True)",
    "Cumsum(x=x, axis=1, reverse=True)",
    "CumulativeLogsumexp(x=x, axis=1)",
    "Diag(diagonal=v)",
    "DiagPart(input=m)",
    "DynamicPartition(data=v, partitions=[0, 1, 0, 1], num_partitions=2)",
    "DynamicStitch(indices=[[0, 2], [1]], data=[[1.0, 3.0], [2.0]])",
    "Einsum(inputs=[x, y.T], equation='ij,jk->ik')",
    "EnsureShape(input=x, shape=[2, None])",
    "ExpandDims(input=x, axis=1)",
    "Fill(dims=[2, 2], value=3.0)",
    "GatherNd(params=x, indices=[[0, 1], [1, 2]])",
    "GatherV2(params=x, indices=[2, 0], axis=1)",
    "Gather(params=x, indices=[1, 1])",
    "HistogramFixedWidth(values=v, value_range=[0.0, 4.0], nbins=4)",
    "Identity(input=x)",
    "Igamma(a=p, x=p)",
    "Igammac(a=p, x=p)",
    "IgammaGradA(a=p, x=p)",
    "RandomGammaGrad(alpha=p, sample=p)",
    "InTopKV2(predictions=x, targets=[2, 0], k=1)",
    "LinSpace(start=0.0, stop=1.0, num=5)",
    "LogMatrixDeterminant(input=m)",
    "MatMul(a=x, b=y, transpose_b=True)",
    "MatrixBandPart(input=x, num_lower=0, num_upper=1)",
    "MatrixDeterminant(input=m)",
    "MatrixDiag(diagonal=v)",
    "MatrixDiagPart(input=x)",
    "MatrixDiagV3(diagonal=v, k=1, num_rows=-1, num_cols=-1, padding_value=9.0)",
    "MatrixDiagPartV3(input=x, k=[-1, 1], padding_value=9.0)",
    "MatrixSetDiagV3(input=x, diagonal=[7.0, 8.0], k=1)",
    "MatrixInverse(input=m, adjoint=True)",
    "MatrixSetDiag(input=m, diagonal=[7.0, 8.0])",
    "MatrixSolve(matrix=m, rhs=x)",
    "MatrixSolveLs(matrix=x.T, rhs=np.ones((3, 1), 'float32'), l2_regularizer=np.float64(0.0))",
    "MatrixSquareRoot(input=m)",
    "MatrixTriangularSolve(matrix=m, rhs=x, lower=False)",
    "MirrorPad(input=x, paddings=[[0, 0], [1, 1]], mode='REFLECT')",
    "OneHot(indices=n, depth=4, on_value=2.0, off_value=-1.0)",
    "Pack(values=[x, y], axis=1)",
    "Pad(input=x, paddings=[[0, 1], [1, 0]])",
    "PadV2(input=x, paddings=[[0, 1], [1, 0]], constant_values=5.0)",
    "Polygamma(a=p, x=p)",
    "PopulationCount(x=i)",
    "Qr(input=m)",
    "Range(start=1, limit=9, delta=3)",
    "Rank(input=x)",
    "Reshape(tensor=x, shape=[3, -1])",
    "ReverseSequence(input=x, seq_lengths=[2, 3], seq_dim=1)",
    "ReverseV2(tensor=x, axis=[1])",
    "Roll(input=x, shift=1, axis=1)",
    "ScatterNd(indices=[[0], [2]], updates=[1.0, 2.0], shape=[3])",
    "SegmentMax(data=v, segment_ids=[0, 0, 1, 1])",
    "SegmentMean(data=v, segment_ids=[0, 0, 1, 1])",
    "SegmentSum(data=v, segment_ids=[0, 0, 1, 1])",
    "Select(condition=[True, False], x=x, y=y)",
    "SelectV2(condition=b, t=x, e=y)",
    "SelfAdjointEigV2(input=m, compute_v=False)[0]",
    "Shape(input=x)",
    "ShapeN(input=[x, v])",
    "Size(input=x)",
    "Slice(input=x, begin=[0, 1], size=[2, 2])",
    "Split(axis=1, value=x, num_split=3)",
    "SplitV(value=x, size_splits=[1, 2], axis=1, num_split=2)",
    "Squeeze(input=[[v]], axis=[0])",
    "StopGradient(input=x)",
    "StridedSlice(input=x, begin=[0, 0], end=[2, 3], strides=[1, 2], begin_mask=1)",
    "Svd(input=m, compute_uv=False)[0]",
    *(
        f"TensorScatter{n}(tensor=v, indices=[[0], [2]], updates=[5.0, 0.5])"
        for n in ("Add", "Sub", "Max", "Min", "Update")
    ),
    "Tile(input=x, multiples=[1, 2])",
    "TopKV2(input=x, k=2)",
    "Transpose(x=x, perm=[1, 0])",
    "TridiagonalSolve(diagonals=[[1.0, 2.0, 0.0], [4.0, 5.0, 6.0], [0.0, 1.0, 2.0]], rhs=[[1.0], [2.0], [3.0]])",
    "Unique(x=n)",
    "UniqueWithCounts(x=n, out_idx=tf.int64)",
    "Unpack(value=x, num=2)",
    "UnravelIndex(indices=[3, 5], dims=[2, 3])",
    "UnsortedSegmentMax(data=v, segment_ids=[1, 0, 1, 0], num_segments=2)",
    "UnsortedSegmentSum(data=v, segment_ids=[1, 0, 1, 0], num_segments=2)",
    "Where(condition=b)",
    "Zeta(x=p + 1, q=p)",
    "AvgPool(value=a, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding='SAME')",
    "BiasAdd(value=x, bias=v[:3])",
    "BiasAddGrad(out_backprop=x)",
    "Conv2D(input=a, filter=f, strides=[1, 1, 1, 1], padding='VALID')",
    "Conv2D(input=a, filter=f, strides=[1, 2, 2, 1], padding='EXPLICIT', explicit_paddings=[0, 0, 1, 0, 0, 1, 0, 0])",
    "Conv2DBackpropFilter(input=a, filter_sizes=[2, 2, 2, 2], out_backprop=a[:, :3, :3], strides=[1, 1, 1, 1], padding='VALID')",
    "Conv2DBackpropInput(input_sizes=[1, 4, 4, 2], filter=f, out_backprop=a[:, :3, :3], strides=[1, 1, 1, 1], padding='VALID')",
    "DepthToSpace(input=np.concatenate([a, a], -1), block_size=2)",
    "DepthwiseConv2dNative(input=a, filter=f, strides=[1, 1, 1, 1], padding='SAME')",
    "DepthwiseConv2dNativeBackpropInput(input_sizes=[1, 4, 4, 2], filter=f, out_backprop=np.concatenate([a, a], -1), strides=[1, 1, 1, 1], padding='SAME')",
    "Dilation2D(input=a, filter=f[0], strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding='SAME')",
    "Elu(features=x)",
    "EluGrad(gradients=x, outputs=y)",
    "ExtractImagePatches(images=a, ksizes=[1, 2, 2, 1], strides=[1, 2, 2, 1], rates=[1, 1, 1, 1], padding='VALID')",
    "FusedBatchNormV3(x=a, scale=v[:2], offset=v[2:], mean=[], variance=[], epsilon=0.001)[:3]",
    "L2Loss(t=x)",
    "LRN(input=a, depth_radius=1)",
    "LeakyRelu(features=x, alpha=0.1)",
    "LeakyReluGrad(gradients=x, features=y, alpha=0.1)",
    "LogSoftmax(logits=x)",
    "MaxPool(input=a, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding='VALID')",
    "MaxPoolGrad(orig_input=a, orig_output=a[:, ::2, ::2], grad=a[:, ::2, ::2], ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding='VALID')",
    "MaxPoolWithArgmax(input=a, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding='VALID')",
    "Relu(features=x)",
    "Relu6(features=x * 4)",
    "Relu6Grad(gradients=x, features=y)",
    "ReluGrad(gradients=x, features=y)",
    *(
        f"{n}Grad(y=u, dy=x)"
        for n in ("Sigmoid", "Tanh", "Sqrt", "Rsqrt", "Reciprocal", "Inv")
        if n not in ("Sqrt", "Rsqrt")
    ),
    "SqrtGrad(y=p, dy=x)",
    "RsqrtGrad(y=p, dy=x)",
    "Selu(features=x)",
    "Softmax(logits=x)",
    "SoftmaxCrossEntropyWithLogits(features=x, labels=np.abs(u))",
    "Softplus(features=x)",
    "SoftplusGrad(gradients=x, features=y)",
    "Softsign(features=x)",
    "SoftsignGrad(gradients=x, features=y)",
    "SpaceToBatchND(input=a, block_shape=[2, 2], paddings=[[0, 0], [0, 0]])",
    "SpaceToDepth(input=a, block_size=2)",
    "SparseSoftmaxCrossEntropyWithLogits(features=x, labels=[2, 0])",
    "StridedSliceGrad(shape=[4], begin=[1], end=[4], strides=[2], dy=[1.0, 2.0])",
    "AdjustContrastv2(images=a[..., [0, 1, 1]], contrast_factor=2.0)",
    "AdjustHue(images=a[..., [0, 1, 1]], delta=0.2)",
    "AdjustSaturation(images=a[..., [0, 1, 1]], scale=0.5)",
    "CropAndResize(image=a, boxes=boxes, box_ind=[0, 0, 0], crop_size=[2, 2])",
    "HSVToRGB(images=np.abs(u))",
    "RGBToHSV(images=np.abs(u))",
    "NonMaxSuppressionV3(boxes=boxes, scores=[0.9, 0.8, 0.7], max_output_size=3, iou_threshold=0.5, score_threshold=0.1)",
    "ResizeBilinear(images=a, size=[3, 5], half_pixel_centers=True)",
    "ResizeNearestNeighbor(images=a, size=[3, 5], align_corners=True)",
    "ResizeBicubic(images=a, size=[3, 5])",
    "ResizeArea(images=a, size=[3, 3])",
    "FFT(input=c)",
    "IFFT(input=c)",
    "RFFT(input=x, fft_length=[3])",
    "IRFFT(input=c, fft_length=[4])",
    "AsString(input=i)",
    "StringJoin(inputs=[s, s], separator='-')",
    "StringLength(input=s)",
    "StringLower(input=s)",
    "StringUpper(input=s)",
    "StringStrip(input=[' a '])",
    "StringToHashBucketFast(input=s, num_buckets=9)",
    "StringToNumber(string_tensor=['1.5'])",
    "StringSplitV2(input=s, sep=' ')",
    "Substr(input=s, pos=0, len=1)",
    "ReduceJoin(inputs=s, reduction_indices=[0], separator='+')",
    "RegexReplace(input=s, pattern='a', rewrite='z')",
    "RegexFullMatch(input=s, pattern='a.')",
    "EncodeBase64(input=s)",
    "StatelessRandomUniform(shape=[3], seed=[1, 2])",
    "StatelessRandomNormal(shape=[2], seed=[1, 2], dtype=tf.float64)",
    "StatelessRandomUniformInt(shape=[3], seed=[1, 2], minval=0, maxval=10)",
    "StatelessTruncatedNormal(shape=[3], seed=[1, 2])",
    "FakeQuantWithMinMaxArgs(inputs=x, min=-1.0, max=1.0)",
    "FakeQuantWithMinMaxVars(inputs=x, min=-1.0, max=1.0, num_bits=4)",
    "FakeQuantWithMinMaxVarsGradient(gradients=y, inputs=x, min=-1.0, max=1.0)",
    "FakeQuantWithMinMaxVarsPerChannelGradient(gradients=y, inputs=x, min=[-1.0, -0.5, -2.0], max=[1.0, 0.5, 1.0])",
    "FakeQuantWithMinMaxArgsGradient(gradients=y, inputs=x, min=-1.0, max=1.0)",
    "QuantizeAndDequantizeV2(input=x, input_min=-1.0, input_max=1.0, range_given=True)",
    "CheckNumerics(tensor=x, message='m')",
    "SparseSegmentSum(data=x, indices=[0, 1], segment_ids=[0, 0])",
    "SparseToDense(sparse_indices=[[0], [2]], output_shape=[3], sparse_values=[1.0, 2.0], default_value=9.0)",
    "SparseTensorDenseMatMul(a_indices=[[0, 1]], a_values=[2.0], a_shape=[2, 2], b=m)",
    "LowerBound(sorted_inputs=[[1.0, 2.0, 3.0]], values=[[2.0]])",
    "UpperBound(sorted_inputs=[[1.0, 2.0, 3.0]], values=[[2.0]])",
    "ListDiff(x=n, y=[1])",
    "BatchToSpaceND(input=np.concatenate([a] * 4), block_shape=[2, 2], crops=[[0, 1], [0, 0]])",
    "Lu(input=m)",
    "NthElement(input=x, n=1)",
]
VARIABLE = np.array([1.0, -2.0, 3.0], np.float32)
_HYPER = {
    "lr": 0.5, "beta1": 0.9, "beta2": 0.8, "epsilon": 0.1, "rho": 0.7, "momentum": 0.6, "l1": 0.1, "l2": 0.2,
    "lr_power": -0.5, "l2_shrinkage": 0.3, "alpha": 0.4, "sign_decay": 0.9, "beta": 0.8, "logbase": 1.5,
    "beta1_power": 0.81, "beta2_power": 0.64, "global_step": 3,
}  # fmt: skip


def run_update(tf, name, parameters):
    """Return the variable and its slots after an update.

    Args:
      tf: The package.
      name: Name of the raw op.
      parameters: Names of its arguments.
    """
    sparse, arguments, variables = "indices" in parameters, {}, []
    for key in parameters:
        if key in ("use_locking", "name", "use_nesterov", "update_slots", "multiply_linear_by_lr"):
            continue
        if key == "indices":
            arguments[key] = tf.constant([0, 2])
        elif key in ("grad", "delta"):
            arguments[key] = tf.constant([0.5, 0.25] if sparse else [0.5, 0.75, 0.25])
        elif key in _HYPER:
            dtype = tf.int64 if key == "global_step" else tf.float32
            arguments[key] = tf.constant(_HYPER[key], dtype)
            if key.endswith("_power") and "Adam" in name and key != "lr_power":
                arguments[key] = tf.constant(_HYPER[key], dtype)
        else:
            value = (
                VARIABLE
                if key == "var"
                else np.array([0.5, 0.6, 0.7], np.float32) + 0.1 * len(variables)
            )
            variables.append(tf.Variable(value))
            arguments[key] = variables[-1].handle
    getattr(tf.raw_ops, name)(**arguments)
    return [v.numpy().tolist() for v in variables]
