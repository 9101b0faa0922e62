"""NumPy's functions on tensors, public as `tf.experimental.numpy`."""

from typing import Any

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.numpy import fft as fft
from meshflow.numpy import linalg as linalg
from meshflow.numpy import random as random
from meshflow.numpy.behavior import copy as copy
from meshflow.numpy.behavior import (
    experimental_enable_numpy_behavior as experimental_enable_numpy_behavior,
)
from meshflow.numpy.behavior import nonzero as nonzero
from meshflow.numpy.conversion import array as array
from meshflow.numpy.conversion import asanyarray as asanyarray
from meshflow.numpy.conversion import asarray as asarray
from meshflow.numpy.conversion import ascontiguousarray as ascontiguousarray
from meshflow.numpy.creation import arange as arange
from meshflow.numpy.creation import diag_indices as diag_indices
from meshflow.numpy.creation import fromfunction as fromfunction
from meshflow.numpy.creation import full as full
from meshflow.numpy.creation import full_like as full_like
from meshflow.numpy.creation import geomspace as geomspace
from meshflow.numpy.creation import indices as indices
from meshflow.numpy.creation import ix_ as ix_
from meshflow.numpy.creation import linspace as linspace
from meshflow.numpy.creation import logspace as logspace
from meshflow.numpy.creation import tri as tri
from meshflow.numpy.creation import tril_indices as tril_indices
from meshflow.numpy.creation import triu_indices as triu_indices
from meshflow.numpy.elementwise import around as around
from meshflow.numpy.elementwise import clip as clip
from meshflow.numpy.elementwise import divide as divide
from meshflow.numpy.elementwise import iscomplexobj as iscomplexobj
from meshflow.numpy.elementwise import isrealobj as isrealobj
from meshflow.numpy.elementwise import round as round
from meshflow.numpy.elementwise import true_divide as true_divide
from meshflow.numpy.inspection import bool_ as bool_
from meshflow.numpy.inspection import can_cast as can_cast
from meshflow.numpy.inspection import complex64 as complex64
from meshflow.numpy.inspection import complex128 as complex128
from meshflow.numpy.inspection import complex_ as complex_
from meshflow.numpy.inspection import dtype as dtype
from meshflow.numpy.inspection import e as e
from meshflow.numpy.inspection import finfo as finfo
from meshflow.numpy.inspection import float16 as float16
from meshflow.numpy.inspection import float32 as float32
from meshflow.numpy.inspection import float64 as float64
from meshflow.numpy.inspection import float_ as float_
from meshflow.numpy.inspection import floating as floating
from meshflow.numpy.inspection import iinfo as iinfo
from meshflow.numpy.inspection import inexact as inexact
from meshflow.numpy.inspection import inf as inf
from meshflow.numpy.inspection import int8 as int8
from meshflow.numpy.inspection import int16 as int16
from meshflow.numpy.inspection import int32 as int32
from meshflow.numpy.inspection import int64 as int64
from meshflow.numpy.inspection import int_ as int_
from meshflow.numpy.inspection import integer as integer
from meshflow.numpy.inspection import isscalar as isscalar
from meshflow.numpy.inspection import issubdtype as issubdtype
from meshflow.numpy.inspection import nan as nan
from meshflow.numpy.inspection import ndarray as ndarray
from meshflow.numpy.inspection import ndim as ndim
from meshflow.numpy.inspection import newaxis as newaxis
from meshflow.numpy.inspection import number as number
from meshflow.numpy.inspection import object_ as object_
from meshflow.numpy.inspection import pi as pi
from meshflow.numpy.inspection import promote_types as promote_types
from meshflow.numpy.inspection import result_type as result_type
from meshflow.numpy.inspection import shape as shape
from meshflow.numpy.inspection import size as size
from meshflow.numpy.inspection import string_ as string_
from meshflow.numpy.inspection import uint8 as uint8
from meshflow.numpy.inspection import uint16 as uint16
from meshflow.numpy.inspection import uint32 as uint32
from meshflow.numpy.inspection import uint64 as uint64
from meshflow.numpy.inspection import unicode_ as unicode_
from meshflow.numpy.manipulation import argsort as argsort
from meshflow.numpy.manipulation import choose as choose
from meshflow.numpy.manipulation import delete as delete
from meshflow.numpy.manipulation import digitize as digitize
from meshflow.numpy.manipulation import pad as pad
from meshflow.numpy.manipulation import repeat as repeat
from meshflow.numpy.manipulation import reshape as reshape
from meshflow.numpy.manipulation import searchsorted as searchsorted
from meshflow.numpy.manipulation import sort as sort
from meshflow.numpy.manipulation import take as take
from meshflow.numpy.products import einsum as einsum
from meshflow.numpy.value_dependent_shapes import argwhere as argwhere
from meshflow.numpy.value_dependent_shapes import bincount as bincount
from meshflow.numpy.value_dependent_shapes import compress as compress
from meshflow.numpy.value_dependent_shapes import extract as extract
from meshflow.numpy.value_dependent_shapes import flatnonzero as flatnonzero
from meshflow.numpy.value_dependent_shapes import histogram as histogram
from meshflow.numpy.value_dependent_shapes import intersect1d as intersect1d
from meshflow.numpy.value_dependent_shapes import ravel_multi_index as ravel_multi_index
from meshflow.numpy.value_dependent_shapes import setdiff1d as setdiff1d
from meshflow.numpy.value_dependent_shapes import setxor1d as setxor1d
from meshflow.numpy.value_dependent_shapes import trim_zeros as trim_zeros
from meshflow.numpy.value_dependent_shapes import union1d as union1d
from meshflow.numpy.value_dependent_shapes import unique as unique
from meshflow.numpy.value_dependent_shapes import where as where

def abs(x: TensorLike) -> Tensor: ...
def absolute(x: TensorLike) -> Tensor: ...
def acos(x: TensorLike) -> Tensor: ...
def acosh(x: TensorLike) -> Tensor: ...
def add(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def all(
    a: TensorLike, axis: Any = ..., keepdims: bool = ..., *, where: TensorLike = ...
) -> Tensor: ...
def allclose(
    a: TensorLike,
    b: TensorLike,
    rtol: TensorLike = ...,
    atol: TensorLike = ...,
    equal_nan: bool = ...,
) -> Tensor: ...
def amax(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def amin(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def angle(z: TensorLike, deg: bool = ...) -> Tensor: ...
def any(
    a: TensorLike, axis: Any = ..., keepdims: bool = ..., *, where: TensorLike = ...
) -> Tensor: ...
def append(arr: TensorLike, values: TensorLike, axis: int | None = ...) -> Tensor: ...
def arccos(x: TensorLike) -> Tensor: ...
def arccosh(x: TensorLike) -> Tensor: ...
def arcsin(x: TensorLike) -> Tensor: ...
def arcsinh(x: TensorLike) -> Tensor: ...
def arctan(x: TensorLike) -> Tensor: ...
def arctan2(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def arctanh(x: TensorLike) -> Tensor: ...
def argmax(a: TensorLike, axis: int | None = ..., keepdims: bool | None = ...) -> Tensor: ...
def argmin(a: TensorLike, axis: int | None = ..., keepdims: bool | None = ...) -> Tensor: ...
def argpartition(a: TensorLike, kth: int, axis: int = ...) -> Tensor: ...
def array_equal(a1: TensorLike, a2: TensorLike, equal_nan: bool = ...) -> Tensor: ...
def array_equiv(a1: TensorLike, a2: TensorLike) -> Tensor: ...
def array_split(
    ary: TensorLike, indices_or_sections: TensorLike, axis: int = ...
) -> list[Tensor]: ...
def asin(x: TensorLike) -> Tensor: ...
def asinh(x: TensorLike) -> Tensor: ...
def atan(x: TensorLike) -> Tensor: ...
def atan2(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def atanh(x: TensorLike) -> Tensor: ...
def atleast_1d(*arys: TensorLike) -> Tensor | list[Tensor]: ...
def atleast_2d(*arys: TensorLike) -> Tensor | list[Tensor]: ...
def atleast_3d(*arys: TensorLike) -> Tensor | list[Tensor]: ...
def average(
    a: TensorLike,
    axis: Any = ...,
    weights: TensorLike = ...,
    returned: bool = ...,
    keepdims: bool = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...
def bartlett(M: int) -> Tensor: ...
def bitwise_and(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def bitwise_count(x: TensorLike) -> Tensor: ...
def bitwise_invert(x: TensorLike) -> Tensor: ...
def bitwise_left_shift(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def bitwise_not(x: TensorLike) -> Tensor: ...
def bitwise_or(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def bitwise_right_shift(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def bitwise_xor(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def blackman(M: int) -> Tensor: ...
def broadcast_arrays(*args: TensorLike) -> list[Tensor]: ...
def broadcast_to(array: TensorLike, shape: Any) -> Tensor: ...
def cbrt(x: TensorLike) -> Tensor: ...
def ceil(x: TensorLike) -> Tensor: ...
def column_stack(tup: TensorLike) -> Tensor: ...
def concat(arrays: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def concatenate(arrays: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def conj(x: TensorLike) -> Tensor: ...
def conjugate(x: TensorLike) -> Tensor: ...
def convolve(a: TensorLike, v: TensorLike, mode: str = ...) -> Tensor: ...
def copysign(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def corrcoef(
    x: TensorLike, y: TensorLike = ..., rowvar: bool = ..., dtype: Any = ...
) -> Tensor: ...
def correlate(a: TensorLike, v: TensorLike, mode: str = ...) -> Tensor: ...
def cos(x: TensorLike) -> Tensor: ...
def cosh(x: TensorLike) -> Tensor: ...
def count_nonzero(a: TensorLike, axis: Any = ..., keepdims: bool = ...) -> Tensor: ...
def cov(
    m: TensorLike,
    y: TensorLike = ...,
    rowvar: bool = ...,
    bias: bool = ...,
    ddof: int | None = ...,
    fweights: TensorLike = ...,
    aweights: TensorLike = ...,
    dtype: Any = ...,
) -> Tensor: ...
def cross(
    a: TensorLike,
    b: TensorLike,
    axisa: int = ...,
    axisb: int = ...,
    axisc: int = ...,
    axis: int | None = ...,
) -> Tensor: ...
def cumprod(a: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def cumsum(a: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def cumulative_prod(
    x: TensorLike, *, axis: int | None = ..., dtype: Any = ..., include_initial: bool = ...
) -> Tensor: ...
def cumulative_sum(
    x: TensorLike, *, axis: int | None = ..., dtype: Any = ..., include_initial: bool = ...
) -> Tensor: ...
def deg2rad(x: TensorLike) -> Tensor: ...
def degrees(x: TensorLike) -> Tensor: ...
def diag(v: TensorLike, k: int = ...) -> Tensor: ...
def diagflat(v: TensorLike, k: int = ...) -> Tensor: ...
def diagonal(a: TensorLike, offset: int = ..., axis1: int = ..., axis2: int = ...) -> Tensor: ...
def diff(
    a: TensorLike,
    n: int = ...,
    axis: int = ...,
    prepend: TensorLike = ...,
    append: TensorLike = ...,
) -> Tensor: ...
def divmod(x1: TensorLike, x2: TensorLike) -> tuple[Tensor, Tensor]: ...
def dot(a: TensorLike, b: TensorLike) -> Tensor: ...
def dsplit(ary: TensorLike, indices_or_sections: TensorLike) -> list[Tensor]: ...
def dstack(tup: TensorLike, dtype: Any = ...) -> Tensor: ...
def ediff1d(ary: TensorLike, to_end: TensorLike = ..., to_begin: TensorLike = ...) -> Tensor: ...
def empty(shape: Any, dtype: Any = ...) -> Tensor: ...
def empty_like(a: TensorLike, dtype: Any = ..., shape: Any = ...) -> Tensor: ...
def equal(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def exp(x: TensorLike) -> Tensor: ...
def exp2(x: TensorLike) -> Tensor: ...
def expand_dims(a: TensorLike, axis: Any) -> Tensor: ...
def expm1(x: TensorLike) -> Tensor: ...
def eye(N: Any, M: Any = ..., k: TensorLike = ..., dtype: Any = ...) -> Tensor: ...
def fabs(x: TensorLike) -> Tensor: ...
def fix(x: TensorLike) -> Tensor: ...
def flatten(a: TensorLike, order: str = ...) -> Tensor: ...
def flip(m: TensorLike, axis: Any = ...) -> Tensor: ...
def fliplr(m: TensorLike) -> Tensor: ...
def flipud(m: TensorLike) -> Tensor: ...
def float_power(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def floor(x: TensorLike) -> Tensor: ...
def floor_divide(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def fmax(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def fmin(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def fmod(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def frexp(x: TensorLike) -> tuple[Tensor, Tensor]: ...
def gcd(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def greater(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def greater_equal(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def hamming(M: int) -> Tensor: ...
def hanning(M: int) -> Tensor: ...
def heaviside(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def hsplit(ary: TensorLike, indices_or_sections: TensorLike) -> list[Tensor]: ...
def hstack(tup: TensorLike, dtype: Any = ...) -> Tensor: ...
def hypot(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def i0(x: TensorLike) -> Tensor: ...
def identity(n: Any, dtype: Any = ...) -> Tensor: ...
def imag(val: TensorLike) -> Tensor: ...
def inner(a: TensorLike, b: TensorLike) -> Tensor: ...
def insert(
    arr: TensorLike, obj: TensorLike, values: TensorLike, axis: int | None = ...
) -> Tensor: ...
def interp(
    x: TensorLike,
    xp: TensorLike,
    fp: TensorLike,
    left: TensorLike = ...,
    right: TensorLike = ...,
    period: TensorLike = ...,
) -> Tensor: ...
def invert(x: TensorLike) -> Tensor: ...
def isclose(
    a: TensorLike,
    b: TensorLike,
    rtol: TensorLike = ...,
    atol: TensorLike = ...,
    equal_nan: bool = ...,
) -> Tensor: ...
def iscomplex(x: TensorLike) -> Tensor: ...
def isfinite(x: TensorLike) -> Tensor: ...
def isin(
    element: TensorLike,
    test_elements: TensorLike,
    assume_unique: bool = ...,
    invert: bool = ...,
    *,
    method: Any = ...,
) -> Tensor: ...
def isinf(x: TensorLike) -> Tensor: ...
def isnan(x: TensorLike) -> Tensor: ...
def isneginf(x: Any) -> Tensor: ...
def isposinf(x: Any) -> Tensor: ...
def isreal(x: TensorLike) -> Tensor: ...
def kaiser(M: int, beta: TensorLike) -> Tensor: ...
def kron(a: TensorLike, b: TensorLike) -> Tensor: ...
def lcm(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def ldexp(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def left_shift(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def less(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def less_equal(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def lexsort(keys: TensorLike, axis: int = ...) -> Tensor: ...
def log(x: TensorLike) -> Tensor: ...
def log10(x: TensorLike) -> Tensor: ...
def log1p(x: TensorLike) -> Tensor: ...
def log2(x: TensorLike) -> Tensor: ...
def logaddexp(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def logaddexp2(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def logical_and(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def logical_not(x: TensorLike) -> Tensor: ...
def logical_or(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def logical_xor(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def matmul(a: TensorLike, b: TensorLike) -> Tensor: ...
def matrix_transpose(x: TensorLike) -> Tensor: ...
def matvec(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def max(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def maximum(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def mean(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    keepdims: bool = ...,
    *,
    where: TensorLike = ...,
) -> Tensor: ...
def median(
    a: TensorLike, axis: Any = ..., overwrite_input: bool = ..., keepdims: bool = ...
) -> Tensor: ...
def meshgrid(
    *xi: TensorLike, copy: bool = ..., sparse: bool = ..., indexing: str = ...
) -> list[Tensor]: ...
def min(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def minimum(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def mod(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def modf(x: TensorLike) -> tuple[Tensor, Tensor]: ...
def moveaxis(a: TensorLike, source: Any, destination: Any) -> Tensor: ...
def multiply(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def nan_to_num(
    x: TensorLike,
    copy: bool = ...,
    nan: TensorLike = ...,
    posinf: TensorLike = ...,
    neginf: TensorLike = ...,
) -> Tensor: ...
def nanargmax(a: TensorLike, axis: int | None = ..., keepdims: bool | None = ...) -> Tensor: ...
def nanargmin(a: TensorLike, axis: int | None = ..., keepdims: bool | None = ...) -> Tensor: ...
def nancumprod(a: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def nancumsum(a: TensorLike, axis: int | None = ..., dtype: Any = ...) -> Tensor: ...
def nanmax(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def nanmean(
    a: TensorLike, axis: Any = ..., dtype: Any = ..., keepdims: bool = ..., where: TensorLike = ...
) -> Tensor: ...
def nanmedian(
    a: TensorLike, axis: Any = ..., overwrite_input: bool = ..., keepdims: bool = ...
) -> Tensor: ...
def nanmin(
    a: TensorLike,
    axis: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def nanpercentile(
    a: TensorLike,
    q: TensorLike,
    axis: Any = ...,
    overwrite_input: bool = ...,
    method: str = ...,
    keepdims: bool = ...,
    *,
    weights: TensorLike = ...,
) -> Tensor: ...
def nanprod(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def nanquantile(
    a: TensorLike,
    q: TensorLike,
    axis: Any = ...,
    overwrite_input: bool = ...,
    method: str = ...,
    keepdims: bool = ...,
    *,
    weights: TensorLike = ...,
) -> Tensor: ...
def nanstd(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    ddof: int = ...,
    keepdims: bool = ...,
    where: TensorLike = ...,
    mean: TensorLike = ...,
) -> Tensor: ...
def nansum(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def nanvar(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    ddof: int = ...,
    keepdims: bool = ...,
    where: TensorLike = ...,
    mean: TensorLike = ...,
) -> Tensor: ...
def negative(x: TensorLike) -> Tensor: ...
def nextafter(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def not_equal(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def ones(shape: Any, dtype: Any = ...) -> Tensor: ...
def ones_like(a: TensorLike, dtype: Any = ..., shape: Any = ...) -> Tensor: ...
def outer(a: TensorLike, b: TensorLike) -> Tensor: ...
def packbits(a: TensorLike, axis: int | None = ..., bitorder: str = ...) -> Tensor: ...
def partition(a: TensorLike, kth: int, axis: int = ...) -> Tensor: ...
def percentile(
    a: TensorLike,
    q: TensorLike,
    axis: Any = ...,
    overwrite_input: bool = ...,
    method: str = ...,
    keepdims: bool = ...,
    *,
    weights: TensorLike = ...,
) -> Tensor: ...
def permute_dims(a: TensorLike, axes: Any = ...) -> Tensor: ...
def poly(seq_of_zeros: TensorLike) -> Tensor: ...
def polyadd(a1: TensorLike, a2: TensorLike) -> Tensor: ...
def polyder(p: TensorLike, m: int = ...) -> Tensor: ...
def polyfit(
    x: TensorLike,
    y: TensorLike,
    deg: int,
    rcond: float | None = ...,
    full: bool = ...,
    w: TensorLike = ...,
    cov: bool = ...,
) -> Tensor | tuple[Tensor, ...]: ...
def polyint(p: TensorLike, m: int = ..., k: TensorLike = ...) -> Tensor: ...
def polymul(a1: TensorLike, a2: TensorLike, *, trim_leading_zeros: bool = ...) -> Tensor: ...
def polysub(a1: TensorLike, a2: TensorLike) -> Tensor: ...
def polyval(p: TensorLike, x: TensorLike) -> Tensor: ...
def positive(x: TensorLike) -> Tensor: ...
def pow(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def power(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def prod(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def ptp(a: TensorLike, axis: Any = ..., keepdims: bool = ...) -> Tensor: ...
def quantile(
    a: TensorLike,
    q: TensorLike,
    axis: Any = ...,
    overwrite_input: bool = ...,
    method: str = ...,
    keepdims: bool = ...,
    *,
    weights: TensorLike = ...,
) -> Tensor: ...
def rad2deg(x: TensorLike) -> Tensor: ...
def radians(x: TensorLike) -> Tensor: ...
def ravel(a: TensorLike, order: str = ...) -> Tensor: ...
def real(val: TensorLike) -> Tensor: ...
def reciprocal(x: TensorLike) -> Tensor: ...
def remainder(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def resize(a: TensorLike, new_shape: Any) -> Tensor: ...
def right_shift(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def rint(x: TensorLike) -> Tensor: ...
def roll(a: TensorLike, shift: TensorLike, axis: Any = ...) -> Tensor: ...
def rollaxis(a: TensorLike, axis: int, start: int = ...) -> Tensor: ...
def rot90(m: TensorLike, k: int = ..., axes: Any = ...) -> Tensor: ...
def select(condlist: TensorLike, choicelist: TensorLike, default: TensorLike = ...) -> Tensor: ...
def sign(x: TensorLike) -> Tensor: ...
def signbit(x: TensorLike) -> Tensor: ...
def sin(x: TensorLike) -> Tensor: ...
def sinc(x: TensorLike) -> Tensor: ...
def sinh(x: TensorLike) -> Tensor: ...
def sort_complex(a: TensorLike) -> Tensor: ...
def spacing(x: TensorLike) -> Tensor: ...
def split(ary: TensorLike, indices_or_sections: TensorLike, axis: int = ...) -> list[Tensor]: ...
def sqrt(x: TensorLike) -> Tensor: ...
def square(x: TensorLike) -> Tensor: ...
def squeeze(a: TensorLike, axis: Any = ...) -> Tensor: ...
def stack(arrays: TensorLike, axis: int = ..., dtype: Any = ...) -> Tensor: ...
def std(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    ddof: int = ...,
    keepdims: bool = ...,
    *,
    where: TensorLike = ...,
    mean: TensorLike = ...,
    correction: int | float | None = ...,
) -> Tensor: ...
def subtract(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def sum(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    keepdims: bool = ...,
    initial: TensorLike = ...,
    where: TensorLike = ...,
) -> Tensor: ...
def swapaxes(a: TensorLike, axis1: int, axis2: int) -> Tensor: ...
def take_along_axis(
    arr: TensorLike, indices: TensorLike, axis: int | None = ..., mode: Any = ...
) -> Tensor: ...
def tan(x: TensorLike) -> Tensor: ...
def tanh(x: TensorLike) -> Tensor: ...
def tensordot(a: TensorLike, b: TensorLike, axes: Any = ...) -> Tensor: ...
def tile(A: TensorLike, reps: Any) -> Tensor: ...
def trace(
    a: TensorLike, offset: TensorLike = ..., axis1: int = ..., axis2: int = ..., dtype: Any = ...
) -> Tensor: ...
def transpose(a: TensorLike, axes: Any = ...) -> Tensor: ...
def trapezoid(
    y: TensorLike, x: TensorLike = ..., dx: TensorLike = ..., axis: int = ...
) -> Tensor: ...
def tril(m: TensorLike, k: int = ...) -> Tensor: ...
def triu(m: TensorLike, k: int = ...) -> Tensor: ...
def trunc(x: TensorLike) -> Tensor: ...
def unpackbits(
    a: TensorLike, axis: int | None = ..., count: int | None = ..., bitorder: str = ...
) -> Tensor: ...
def unravel_index(indices: TensorLike, shape: Any) -> tuple[Tensor, ...]: ...
def unstack(x: TensorLike, *, axis: int = ...) -> tuple[Tensor, ...]: ...
def unwrap(
    p: TensorLike, discont: TensorLike = ..., axis: int = ..., period: TensorLike = ...
) -> Tensor: ...
def vander(x: TensorLike, N: int | None = ..., increasing: bool = ...) -> Tensor: ...
def var(
    a: TensorLike,
    axis: Any = ...,
    dtype: Any = ...,
    ddof: int = ...,
    keepdims: bool = ...,
    *,
    where: TensorLike = ...,
    mean: TensorLike = ...,
    correction: int | float | None = ...,
) -> Tensor: ...
def vdot(a: TensorLike, b: TensorLike) -> Tensor: ...
def vecdot(x1: TensorLike, x2: TensorLike, *, axis: int = ...) -> Tensor: ...
def vecmat(x1: TensorLike, x2: TensorLike) -> Tensor: ...
def vsplit(ary: TensorLike, indices_or_sections: TensorLike) -> list[Tensor]: ...
def vstack(tup: TensorLike, dtype: Any = ...) -> Tensor: ...
def zeros(shape: Any, dtype: Any = ...) -> Tensor: ...
def zeros_like(a: TensorLike, dtype: Any = ..., shape: Any = ...) -> Tensor: ...

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "amax",
    "amin",
    "angle",
    "any",
    "append",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "around",
    "array",
    "array_equal",
    "array_equiv",
    "array_split",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "average",
    "bartlett",
    "bincount",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "blackman",
    "bool_",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "cbrt",
    "ceil",
    "choose",
    "clip",
    "column_stack",
    "complex64",
    "complex128",
    "complex_",
    "compress",
    "concat",
    "concatenate",
    "conj",
    "conjugate",
    "convolve",
    "copy",
    "copysign",
    "corrcoef",
    "correlate",
    "cos",
    "cosh",
    "count_nonzero",
    "cov",
    "cross",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "deg2rad",
    "degrees",
    "delete",
    "diag",
    "diag_indices",
    "diagflat",
    "diagonal",
    "diff",
    "digitize",
    "divide",
    "divmod",
    "dot",
    "dsplit",
    "dstack",
    "dtype",
    "e",
    "ediff1d",
    "einsum",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "exp2",
    "expand_dims",
    "experimental_enable_numpy_behavior",
    "expm1",
    "extract",
    "eye",
    "fabs",
    "fft",
    "finfo",
    "fix",
    "flatnonzero",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "float_",
    "float_power",
    "floating",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "fromfunction",
    "full",
    "full_like",
    "gcd",
    "geomspace",
    "greater",
    "greater_equal",
    "hamming",
    "hanning",
    "heaviside",
    "histogram",
    "hsplit",
    "hstack",
    "hypot",
    "i0",
    "identity",
    "iinfo",
    "imag",
    "indices",
    "inexact",
    "inf",
    "inner",
    "insert",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "integer",
    "interp",
    "intersect1d",
    "invert",
    "isclose",
    "iscomplex",
    "iscomplexobj",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "isrealobj",
    "isscalar",
    "issubdtype",
    "ix_",
    "kaiser",
    "kron",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "lexsort",
    "linalg",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logspace",
    "matmul",
    "matrix_transpose",
    "matvec",
    "max",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "min",
    "minimum",
    "mod",
    "modf",
    "moveaxis",
    "multiply",
    "nan",
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "ndarray",
    "ndim",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "number",
    "object_",
    "ones",
    "ones_like",
    "outer",
    "packbits",
    "pad",
    "partition",
    "percentile",
    "permute_dims",
    "pi",
    "poly",
    "polyadd",
    "polyder",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "positive",
    "pow",
    "power",
    "prod",
    "promote_types",
    "ptp",
    "quantile",
    "rad2deg",
    "radians",
    "random",
    "ravel",
    "ravel_multi_index",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "resize",
    "result_type",
    "right_shift",
    "rint",
    "roll",
    "rollaxis",
    "rot90",
    "round",
    "searchsorted",
    "select",
    "setdiff1d",
    "setxor1d",
    "shape",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "size",
    "sort",
    "sort_complex",
    "spacing",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "string_",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "trace",
    "transpose",
    "trapezoid",
    "tri",
    "tril",
    "tril_indices",
    "trim_zeros",
    "triu",
    "triu_indices",
    "true_divide",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unicode_",
    "union1d",
    "unique",
    "unpackbits",
    "unravel_index",
    "unstack",
    "unwrap",
    "vander",
    "var",
    "vdot",
    "vecdot",
    "vecmat",
    "vsplit",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]
