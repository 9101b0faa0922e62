"""Raw ops that a public function computes, by the namespace of the function.

`Name` is computed by the function with this name in snake case, `Name=function` by another one. Required arguments
are passed by position, the other ones by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TABLE: dict[str, str] = {
    "": """
        ArgMax=argmax ArgMin=argmin AsString Assert=Assert BatchToSpaceND=batch_to_space Bitcast BroadcastTo Cast Complex ConcatV2=concat
        DynamicPartition DynamicStitch ParallelDynamicStitch=dynamic_stitch EditDistance EnsureShape ExpandDims Fill
        Fingerprint Gather GatherNd GatherV2=gather GuaranteeConst HistogramFixedWidth Identity IdentityN LinSpace=linspace
        NoOp OneHot OnesLike Pack=stack Pad PadV2=pad ParallelConcat=parallel_stack Range Rank Reshape ReverseSequence
        ReverseV2=reverse Roll ScatterNd Shape ShapeN Size Slice SpaceToBatchND=space_to_batch_nd Squeeze StopGradient
        PreventGradient=stop_gradient StridedSlice TensorScatterAdd=tensor_scatter_nd_add
        TensorScatterMax=tensor_scatter_nd_max TensorScatterMin=tensor_scatter_nd_min
        TensorScatterSub=tensor_scatter_nd_sub TensorScatterUpdate=tensor_scatter_nd_update Tile Transpose
        TruncateDiv=truncatediv TruncateMod=truncatemod UnravelIndex ZerosLike Timestamp
        Snapshot=identity DebugIdentity=identity DebugIdentityV2=identity DebugIdentityV3=identity
        DebugGradientIdentity=identity DeepCopy=identity Unique UniqueWithCounts Unpack=unstack
        BroadcastArgs=broadcast_dynamic_shape ClipByValue
    """,
    "math": """
        Abs AccumulateNV2=accumulate_n Acos Acosh Add AddV2=add AddN Angle Asin Asinh Atan Atan2 Atanh
        BesselI0=bessel_i0 BesselI0e=bessel_i0e BesselI1=bessel_i1 BesselI1e=bessel_i1e Betainc Bincount Ceil ComplexAbs=abs
        Conj Cos Cosh CumulativeLogsumexp Cumprod Cumsum Digamma Div=divide RealDiv=divide DivNoNan=divide_no_nan Equal Erf
        Erfc Erfinv Exp Expm1 Floor FloorDiv=floordiv FloorMod=floormod Mod=truncatemod Greater GreaterEqual Igamma Igammac
        Imag Inv=reciprocal InvertPermutation IsFinite IsInf IsNan Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot
        LogicalOr Maximum Minimum Mul=multiply MulNoNan=multiply_no_nan Ndtri Neg=negative NextAfter=nextafter NotEqual Polygamma
        Pow Real Reciprocal Rint Round Rsqrt SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum
        Sigmoid Sign Sin Sinh Softplus Sqrt Square SquaredDifference Sub=subtract Tan Tanh
        UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum Xdivy Xlog1py Xlogy=xlogy Zeta
        InTopKV2=in_top_k
    """,
    "math.special": """
        BesselJ0=bessel_j0 BesselJ1=bessel_j1 BesselK0=bessel_k0 BesselK0e=bessel_k0e BesselK1=bessel_k1
        BesselK1e=bessel_k1e BesselY0=bessel_y0 BesselY1=bessel_y1 Dawsn Expint FresnelCos FresnelSin Spence
    """,
    "bitwise": "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift",
    "linalg": """
        BandedTriangularSolve BatchMatMul=matmul BatchMatMulV2=matmul BatchMatMulV3=matmul Cholesky Cross Diag=tensor_diag
        DiagPart=tensor_diag_part Lu LogMatrixDeterminant=slogdet MatMul=matmul MatrixBandPart=band_part MatrixDeterminant=det
        MatrixDiag=diag MatrixDiagPart=diag_part MatrixExponential=expm MatrixInverse=inv MatrixLogarithm=logm
        MatrixSetDiag=set_diag MatrixSolve=solve MatrixSquareRoot=sqrtm MatrixTriangularSolve=triangular_solve
        Qr SelfAdjointEigV2=eigh TridiagonalMatMul=tridiagonal_matmul Svd
    """,
    "nn": """
        AvgPool AvgPool3D=avg_pool3d BiasAdd BiasAddV1=bias_add Conv2D=conv2d Conv3D=conv3d DepthToSpace
        DepthwiseConv2dNative=depthwise_conv2d Elu LRN=local_response_normalization LeakyRelu LogSoftmax
        L2Loss=l2_loss MaxPool MaxPool3D=max_pool3d MaxPoolV2=max_pool Relu Relu6=relu6 Selu Softmax Softsign SpaceToDepth
        TopKV2=top_k TopK MaxPoolWithArgmax=max_pool_with_argmax
        Conv2DBackpropFilter=conv2d_backprop_filter
    """,
    "image": """
        AdjustContrastv2=adjust_contrast AdjustHue AdjustSaturation CropAndResize DecodeAndCropJpeg DecodeBmp DecodeGif
        DecodeImage DecodeJpeg DecodePng DrawBoundingBoxesV2=draw_bounding_boxes EncodeJpeg EncodePng ExtractJpegShape
        HSVToRGB=hsv_to_rgb RGBToHSV=rgb_to_hsv NonMaxSuppressionV3=non_max_suppression
        ExtractImagePatches=extract_patches
    """,
    "signal": """
        BatchFFT=fft BatchFFT2D=fft2d BatchFFT3D=fft3d BatchIFFT=ifft BatchIFFT2D=ifft2d BatchIFFT3D=ifft3d FFT=fft FFT2D=fft2d
        FFT3D=fft3d IFFT=ifft IFFT2D=ifft2d IFFT3D=ifft3d IRFFT=irfft IRFFT2D=irfft2d IRFFT3D=irfft3d RFFT=rfft RFFT2D=rfft2d
        RFFT3D=rfft3d FFTND=fftnd IFFTND=ifftnd RFFTND=rfftnd IRFFTND=irfftnd
    """,
    "strings": """
        ReduceJoin RegexFullMatch RegexReplace StaticRegexFullMatch=regex_full_match StaticRegexReplace=regex_replace
        StringFormat=format StringJoin=join StringLength=length StringLower=lower StringStrip=strip StringUpper=upper
        StringToHashBucketFast=to_hash_bucket_fast StringToHashBucketStrong=to_hash_bucket_strong
        StringToHashBucket=to_hash_bucket StringToNumber=to_number Substr=substr UnicodeScript UnicodeTranscode
        UnsortedSegmentJoin
    """,
    "io": """
        DecodeBase64=decode_base64 DecodeCompressed DecodeJSONExample=decode_json_example EncodeBase64=encode_base64
        MatchingFiles ParseTensor ReadFile SerializeTensor WriteFile
    """,
    "audio": "DecodeWav EncodeWav",
    "random": """
        LogUniformCandidateSampler Multinomial=categorical RandomShuffle=shuffle UniformCandidateSampler
        StatelessShuffle=experimental.stateless_shuffle
    """,
    "quantization": """
        FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
        FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient
    """,
    "debugging": "CheckNumerics CheckNumericsV2=check_numerics",
    "sparse": "SparseSegmentSum=segment_sum SparseSegmentMean=segment_mean SparseSegmentSqrtN=segment_sqrt_n",
    "compat.v1.image": "ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor",
}
# Arguments of public functions by those of raw ops.
ARGUMENTS: dict[str, str] = {
    "T": "dtype",
    "Targmax": "output_dtype",
    "adj_x": "adjoint_a",
    "adj_y": "adjoint_b",
    "Tindices": "output_idx_type",
    "input_encoding": "input_encoding",
    "keep_dims": "keepdims",
    "out_idx": "out_idx",
    "output_type": "output_type",
    "separator": "separator",
    "squeeze_dims": "axis",
}
# The public functions of these ops have other results, so the op of TensorFlow's graphs is used.
_EXCLUDED_TEXT = (
    "Bincount Conv2DBackpropFilter LogUniformCandidateSampler MaxPoolWithArgmax StatelessShuffle StringFormat Svd "
    "UniformCandidateSampler Unique UniqueWithCounts"
)
_EXCLUDED = frozenset(_EXCLUDED_TEXT.split())


def _iterate_paths() -> Iterator[tuple[str, str]]:
    for namespace, text in _TABLE.items():
        for entry in text.split():
            op, _, function = entry.partition("=")
            name = (
                function
                or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op).lower()
            )
            if op not in _EXCLUDED:
                yield op, f"{namespace}.{name}".lstrip(".")


# Paths of public functions by the op.
PUBLIC_PATHS: dict[str, str] = dict(_iterate_paths())
