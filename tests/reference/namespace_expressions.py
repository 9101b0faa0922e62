r"""More expressions evaluated in TensorFlow once (generate_namespace_expressions.py), by namespace.

They may give any structure of tensors, sparse tensors, text and Python values, or raise. `a`, `b` are
float32 [2, 3]; `p` positive; `d` float64 [2, 3]; `i` int32 [2, 3]; `t`, `r` booleans [2, 3]; `m`, `g`
float32 [3, 3], `m` positive definite; `v` [5]; `z` complex64 [2, 3]; `q` complex64 [4, 4]; `x` float32
images [2, 6, 6, 3] in [0, 1]; `n` one uint8 image [6, 5, 3]; `big` float32 images [2, 16, 16, 1]; `k`
volumes [2, 4, 4, 4, 2]; `w` [3, 3, 3, 4], `w3` [2, 2, 2, 2, 3] kernels; `boxes` [6, 4], `scores` [6];
`words` four strings; `sp` a sparse matrix [3, 4].
"""

# With gradients of the sum of squares.
DIFFERENTIABLE = r"""
tf.math.accumulate_n([a, b, a])
tf.math.bessel_i1e(a)
tf.math.special.bessel_i0e(a)
tf.math.erfcinv(p / 2.5)
tf.math.pow(p, a)
tf.math.reciprocal_no_nan(a * [1., 0., 2.])
tf.math.scalar_mul(2.5, a)
tf.multiply(a, [1., 2., 3.])
tf.subtract(a, b)
tf.negative(a)
tf.divide(a, p)
tf.realdiv(a, p)
tf.math.segment_max(a, [0, 2])
tf.math.segment_min(a, [0, 2])
tf.math.segment_prod(a, [0, 2])
tf.math.segment_prod(a, [0, 0])
tf.math.segment_max(tf.reshape(a, [6]), [0, 0, 1, 1, 3, 3])
tf.math.unsorted_segment_min(a, [1, 1], 2)
tf.math.reduce_max(tf.stack([a, a]), 0)
tf.grad_pass_through(tf.round)(a)
tf.add_n(tf.identity_n([a, b]))
tf.ensure_shape(a, [2, None])
tf.dynamic_partition(a, [1, 0], 2)[0]
tf.dynamic_partition(tf.reshape(a, [6]), [0, 1, 0, 2, 2, 0], 4)[0]
tf.space_to_batch_nd(x, [2, 3], [[0, 0], [1, 2]])
tf.batch_to_space(tf.space_to_batch_nd(x, [2, 3], [[0, 0], [1, 2]]), [2, 3], [[0, 0], [1, 2]])
tf.linalg.matrix_transpose(m)
tf.linalg.normalize(a)[0]
tf.linalg.normalize(a, axis=1)[1]
tf.linalg.normalize(a, ord=1, axis=1)[0]
tf.linalg.tensor_diag_part(m)
tf.linalg.diag(a, k=1)
tf.linalg.diag(a, k=(-1, 0), num_rows=4, padding_value=9.)
tf.linalg.diag(a, k=(0, 1), align='LEFT_RIGHT')
tf.linalg.diag_part(m, k=1)
tf.linalg.diag_part(m, k=(-1, 1))
tf.linalg.diag_part(m, k=(-2, 0), padding_value=7., align='LEFT_LEFT')
tf.linalg.set_diag(m, [8., 9.], k=-1)
tf.linalg.set_diag(m, a, k=(0, 1), align='LEFT_RIGHT')
tf.linalg.sqrtm(m)
tf.nn.avg_pool(x, 2, 2, 'SAME')
tf.nn.avg_pool(k, 2, 1, 'VALID')
tf.nn.max_pool(x, [1, 2, 3, 1], [1, 2, 1, 1], 'SAME')
tf.nn.max_pool(x[:, 0], 2, 1, 'VALID')
tf.nn.max_pool1d(x[:, 0], 3, 2, 'SAME')
tf.nn.max_pool3d(k, 2, 2, 'SAME')
tf.nn.avg_pool3d(k, 3, 2, 'SAME')
tf.nn.conv3d(k, w3, [1, 1, 2, 1, 1], 'SAME')
tf.nn.conv3d(k, w3, [1, 1, 1, 1, 1], 'VALID')
tf.nn.conv1d_transpose(x[:, 0], tf.transpose(w[0], [0, 2, 1]), [2, 12, 4], 2)
tf.nn.conv3d_transpose(tf.nn.conv3d(k, w3, [1, 2, 2, 2, 1], 'SAME'), w3, [2, 4, 4, 4, 2], [1, 2, 2, 2, 1])
tf.nn.conv_transpose(x, tf.transpose(w, [0, 1, 3, 2]), [2, 13, 13, 4], 2, 'VALID')
tf.nn.convolution(x, w, strides=[2, 1], padding='SAME')
tf.nn.convolution(x, w, dilations=[2, 2])
tf.nn.convolution(x[:, 0], w[0])
tf.nn.separable_conv2d(x, w[..., :2], tf.reshape(a, [1, 1, 6, 1]), [1, 1, 1, 1], 'SAME')
tf.nn.separable_conv2d(x, w[..., :2], tf.reshape(a, [1, 1, 6, 1]), [1, 1, 1, 1], 'VALID', dilations=[2, 2])
tf.image.crop_and_resize(x, [[0., 0., 1., 1.], [.1, .3, .8, 1.2], [.9, .1, .2, .5]], [0, 1, 1], [4, 3])
tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], 'SAME')
tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], 'VALID')
tf.image.grayscale_to_rgb(x[..., :1])
tf.image.image_gradients(x)[0]
tf.image.image_gradients(x)[1]
tf.image.sobel_edges(x)
tf.image.pad_to_bounding_box(x, 1, 2, 8, 9)
tf.image.crop_to_bounding_box(x, 1, 2, 3, 2)
tf.image.resize_with_pad(x, 9, 7)
tf.image.resize_with_pad(x, 4, 9, antialias=True)
tf.image.rgb_to_yiq(x)
tf.image.rgb_to_yuv(x)
tf.image.yiq_to_rgb(x)
tf.image.yuv_to_rgb(x)
tf.image.transpose(x)
tf.image.flip_left_right(x)
tf.image.ssim(big, big * .9, 1.)
tf.image.ssim(big, big[::-1], 1., filter_size=5, filter_sigma=1., k1=.02, k2=.05)
tf.image.ssim(big, big[::-1], 1., filter_size=5, return_index_map=True)
tf.image.ssim_multiscale(big, big * .8, 1., power_factors=[.4, .6], filter_size=5)
tf.image.resize(x, [4, 9], 'bicubic')
tf.image.resize(x, [4, 9], 'area')
tf.image.resize(x, [4, 9], 'gaussian', antialias=True)
tf.image.resize(x, [13, 3], 'mitchellcubic', antialias=True)
tf.image.resize(x, [13, 3], 'lanczos5')
tf.image.resize(x, [13, 3], preserve_aspect_ratio=True)
tf.image.adjust_contrast(x[0], .3)
tf.sparse.sparse_dense_matmul(sp, tf.reshape(v[:4], [4, 1]))
tf.sparse.sparse_dense_matmul(sp, m, adjoint_a=True)
"""

OTHERS = r"""
tf.complex(a, b)
tf.complex(d, d)
tf.complex(a, d)
tf.greater(a, b)
tf.greater_equal(i, [1, 0, -1])
tf.less(i, 1)
tf.less_equal(a, b)
tf.greater(i, 1.5)
tf.math.is_inf(a / (b - b))
tf.math.is_non_decreasing(v)
tf.math.is_non_decreasing([1, 1, 2])
tf.math.is_non_decreasing([])
tf.math.is_strictly_increasing([1, 1, 2])
tf.math.is_strictly_increasing([[1, 2], [3, 4]])
tf.logical_and(t, r)
tf.logical_or(t, r)
tf.logical_not(t)
tf.math.logical_xor(t, r)
tf.logical_and(t, [True, False, True])
tf.logical_and(i, i)
tf.pow(i, 2)
tf.pow([[2, 2], [3, 3]], [[8, 16], [2, 3]])
tf.pow(2, 10)
tf.pow(i, -1)
tf.divide(i, 2)
tf.divide(7, 2)
tf.truncatediv(i, 3)
tf.truncatediv(a, b)
tf.truncatemod(i, 3)
tf.truncatemod(a, p)
tf.math.segment_max(i, [0, 2])
tf.math.segment_min(i, [1, 3])
tf.math.segment_prod(i, [1, 3])
tf.math.segment_mean(a, [0, 3])
tf.math.segment_sum(a, [1, 0])
tf.math.unsorted_segment_min(i, [0, 0], 3)
tf.math.unsorted_segment_max(a, [0, 0], 2)
tf.math.reciprocal_no_nan(i)
tf.broadcast_dynamic_shape([3, 1], [2])
tf.broadcast_dynamic_shape([1, 2, 3], [5, 1, 3])
tf.broadcast_dynamic_shape([2], [3])
tf.broadcast_static_shape(tf.TensorShape([3, 1]), tf.TensorShape([2]))
tf.broadcast_static_shape(tf.TensorShape([3]), tf.TensorShape([2]))
tf.dynamic_partition(i, [[0, 1, 1], [1, 0, 0]], 2)
tf.dynamic_partition(words, [0, 1, 0, 1], 2)
tf.ensure_shape(a, [2, 4])
tf.get_static_value(i)
tf.get_static_value(tf.constant('hi'))
tf.histogram_fixed_width_bins([-1., 0., 1.5, 2., 5., 15.], [0., 5.], nbins=5)
tf.identity_n([i, 2.])
tf.group(i, a)
tf.no_op()
tf.guarantee_const(a)
tf.tuple([a, i])
tf.required_space_to_batch_paddings([5, 6], [2, 4])
tf.required_space_to_batch_paddings([5, 6], [2, 4], [[1, 0], [0, 1]])
tf.shape_n([a, v, x])
tf.shape_n([a, v], tf.int64)
tf.unravel_index([22, 41, 37], [7, 6])
tf.unravel_index(tf.constant(5, tf.int64), tf.constant([2, 3], tf.int64))
tf.type_spec_from_value(a).dtype.name
tf.type_spec_from_value(a).shape
tf.as_string(i)
tf.as_string([3.14159, 1e10], precision=3)
tf.as_string([3.14159, 1e10])
tf.as_string([3.14159, 1e10], scientific=True)
tf.as_string([3.14159, 1e10], shortest=True, precision=3)
tf.as_string([True, False])
tf.as_string(z[0, 0])
tf.as_string([3, -4], width=5, fill='0')
tf.as_string([3, -4], width=5)
tf.as_string([3.5], width=9, precision=2, fill='*')
tf.as_string([3, -4], width=5, fill='-')
tf.as_string([3.5], fill='+')
tf.as_string(tf.constant([1.5, 2.25], tf.float64))
tf.as_string(tf.constant([1.5, 2.25], tf.float16))
tf.as_string([3], scientific=True, shortest=True)
tf.linalg.eig(g)[0].dtype.name
tf.sort(tf.math.real(tf.linalg.eigvals(g)))
tf.sort(tf.math.imag(tf.linalg.eigvals(g)))
tf.round(1e3 * tf.abs(tf.cast(g, tf.complex64) @ tf.linalg.eig(g)[1] - tf.linalg.eig(g)[1] * tf.linalg.eig(g)[0]))
tf.norm(tf.linalg.eig(g)[1], axis=0)
tf.linalg.matrix_transpose(z, conjugate=True)
tf.linalg.tensor_diag_part(tf.reshape(tf.range(16), [2, 2, 2, 2]))
tf.linalg.matrix_rank(tf.linalg.diag([1., 0., 3.]))
tf.nn.scale_regularization_loss(3.)
tf.bitwise.bitwise_or(i, 3)
tf.bitwise.bitwise_xor(i, 3)
tf.bitwise.invert(i)
tf.bitwise.invert(tf.constant([0, 5, 255], tf.uint8))
tf.bitwise.right_shift(i, 1)
tf.bitwise.right_shift(tf.constant([128, 3], tf.uint8), tf.constant([3, 1], tf.uint8))
tf.bitwise.left_shift(tf.constant([100, 3], tf.int8), tf.constant([3, 1], tf.int8))
tf.bitwise.bitwise_or(a, b)
tf.signal.fft(q)
tf.signal.ifft(q)
tf.signal.fft2d(q)
tf.signal.ifft2d(q)
tf.signal.rfft(a, [8])
tf.signal.rfft(a, [2])
tf.signal.irfft(z)
tf.signal.irfft(z, [5])
tf.signal.irfft(q, [6])
tf.signal.rfft(d)
tf.image.adjust_brightness(n, .2)
tf.image.adjust_contrast(n, 2.)
tf.image.adjust_saturation(n, .5)
tf.image.adjust_hue(n, .1)
tf.image.adjust_gamma(n, 1.5, .9)
tf.image.rgb_to_grayscale(n)
tf.image.grayscale_to_rgb(n[..., :1])
tf.image.grayscale_to_rgb(n)
tf.image.hsv_to_rgb(x)
tf.image.rgb_to_hsv(x)
tf.image.convert_image_dtype(n, tf.float32)
tf.image.convert_image_dtype(n, tf.int16)
tf.image.convert_image_dtype(tf.cast(n, tf.int32) * 8000000, tf.uint8)
tf.image.convert_image_dtype(x * 1.2, tf.uint8, saturate=True)
tf.image.per_image_standardization(n)
tf.image.resize(n, [3, 4])
tf.image.resize(n, [3, 4], 'nearest')
tf.image.resize_with_pad(n, 9, 7)
tf.image.resize_with_crop_or_pad(n, 9, 3)
tf.image.pad_to_bounding_box(n, 0, 0, 5, 9)
tf.image.crop_to_bounding_box(n, 4, 0, 4, 2)
tf.image.central_crop(n, .6)
tf.image.rot90(n, 3)
tf.image.crop_and_resize(n[None], [[.1, .2, .7, .9]], [0], [3, 3], 'nearest', 7.)
tf.image.crop_and_resize(x, [[-.2, .2, .7, 1.4]], [1], [3, 1], extrapolation_value=-1.)
tf.image.crop_and_resize(x, [[.1, .2, .7, .9]], [0], [3, 3], 'cubic')
tf.image.extract_patches(n[None], [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], 'VALID')
tf.image.total_variation(tf.cast(n, tf.float32))
tf.image.psnr(n, n[::-1], 255)
tf.image.ssim(tf.tile(n, [3, 3, 1]), tf.tile(n[::-1], [3, 3, 1]), 255)
tf.image.draw_bounding_boxes(x, [[[.1, .2, .7, .9], [0., 0., .5, 1.2]]] * 2, [[1., 0., 0.], [.2, .4, .6]])
tf.image.draw_bounding_boxes(x, [[[.1, .2, .7, .9]]] * 2, None)
tf.image.non_max_suppression(boxes, scores, 4)
tf.image.non_max_suppression(boxes, scores, 4, iou_threshold=.1)
tf.image.non_max_suppression(boxes, scores, 9, .3, score_threshold=.4)
tf.image.non_max_suppression_with_scores(boxes, scores, 5, soft_nms_sigma=.5)
tf.image.non_max_suppression_with_scores(boxes, scores, 5, score_threshold=.3, soft_nms_sigma=.2)
tf.image.non_max_suppression_with_scores(boxes, scores, 5, .2)
tf.image.non_max_suppression_overlaps(tf.abs(boxes[:4] @ tf.transpose(boxes[:4])), scores[:4], 3, .8)
tf.image.non_max_suppression_padded(boxes, scores, 6, .3, pad_to_max_output_size=True)
tf.image.non_max_suppression_padded(boxes, scores, 6, .3)
tf.image.non_max_suppression_padded(boxes[None], scores[None], 4, .3, pad_to_max_output_size=True)
tf.image.combined_non_max_suppression(boxes[None, :, None], tf.stack([scores, scores[::-1]], 1)[None], 3, 5, .3)
tf.image.combined_non_max_suppression(boxes[None, :, None] * 1.5, tf.stack([scores, scores[::-1]], 1)[None], 2, 8, .3, .3, pad_per_class=True)
tf.image.combined_non_max_suppression(tf.stack([boxes, boxes[::-1]], 1)[None], tf.stack([scores, scores], 1)[None], 2, 3, .3, clip_boxes=False)
tf.image.is_jpeg(b'\xff\xd8\xff\xe0')
tf.image.is_jpeg(b'PNG')
tf.strings.bytes_split('hello')
tf.strings.format('a {} b {}', [i, 'x'])
tf.strings.format('v: {}', v)
tf.strings.format('{}', tf.range(20))
tf.strings.format('{}', tf.range(20), summarize=-1)
tf.strings.format('%s and %s', (1, 2.5), placeholder='%s')
tf.strings.format('{} {}', [1])
tf.strings.join([words, 'x'], '-')
tf.strings.join([['a', 'b'], ['c', 'd']])
tf.strings.length(words)
tf.strings.length(words, 'UTF8_CHAR')
tf.strings.lower(words)
tf.strings.lower(words, 'utf-8')
tf.strings.upper(words)
tf.strings.upper(words, 'utf-8')
tf.strings.strip(['  a b\n', '\tc'])
tf.strings.ngrams(['a', 'b', 'c', 'd'], 2)
tf.strings.ngrams(['a', 'b', 'c'], [1, 2], '|')
tf.strings.ngrams(['a', 'b', 'c'], 3, pad_values=('<', '>'))
tf.strings.ngrams(['a', 'b', 'c'], 3, pad_values='_', padding_width=1)
tf.strings.ngrams(['a', 'b'], 4)
tf.strings.ngrams(['a', 'b'], 4, preserve_short_sequences=True)
tf.strings.reduce_join([['a', 'b'], ['c', 'd']])
tf.strings.reduce_join([['a', 'b'], ['c', 'd']], 0)
tf.strings.reduce_join([['a', 'b'], ['c', 'd']], -1, separator='+')
tf.strings.reduce_join([['a', 'b'], ['c', 'd']], [1, 0], separator=' ')
tf.strings.reduce_join([['a', 'b'], ['c', 'd']], 1, keepdims=True)
tf.strings.regex_full_match(['a1', 'b', 'a11'], 'a[0-9]')
tf.strings.regex_full_match(['a|b', 'Ab'], '(?i)ab')
tf.strings.regex_replace(['a1b22', ''], '[0-9]+', '#')
tf.strings.regex_replace('a1b22', '([a-z])([0-9]+)', r'\2\1')
tf.strings.regex_replace('a1b22', '[0-9]', '<\\0>', replace_global=False)
tf.strings.regex_replace('Café au lait', '[[:space:]]', '_')
tf.strings.regex_replace('abc', 'x*', '-')
tf.strings.regex_replace('a.b', r'\pP', '')
tf.strings.regex_replace('abc', '(', '')
tf.strings.regex_replace('a]b[c-d', '[]-]', '_')
tf.strings.regex_replace('a]b[c', '[^][a]', '_')
tf.strings.regex_replace('héllo, w1!', r'[\pL\d]', 'x')
tf.strings.regex_replace('héllo, w1!', r'\P{L}', '.')
tf.strings.regex_replace('a.b.c', r'\Q.\E', '')
tf.strings.regex_replace('é1 x', r'\w', 'W')
tf.strings.regex_replace('ab\n', 'b$', '#')
tf.strings.regex_replace('a\nb\n', '(?m)$', '#')
tf.strings.regex_replace('abc', 'b', '\\\\')
tf.strings.regex_replace('abab', r'(a)b\1', '')
tf.strings.regex_replace('A-b_9', '[^[:alnum:]]', '')
tf.strings.regex_replace('A-b_9', '[[:^alpha:]]', '.')
tf.strings.regex_replace(b'a\xffb', 'b', 'c')
tf.strings.regex_replace('(ab)(?=c)', '(?=c)', '')
tf.strings.split('a b  c ')
tf.strings.split('a,b,,c', ',')
tf.strings.split('a,b,,c', ',', maxsplit=2)
tf.strings.split(' a  b c', maxsplit=1)
tf.strings.split('')
tf.strings.substr(words, 1, 2)
tf.strings.substr('hello', -3, 2)
tf.strings.substr('hello', [0, 4], [2, 9])
tf.strings.substr('hello', 6, 1)
tf.strings.substr(words[1], 1, 3, 'UTF8_CHAR')
tf.strings.substr(['abc', 'defg'], [1, 2], [2, 1])
tf.strings.to_number(['1.5', '-2', '3e2', 'inf', 'nan'])
tf.strings.to_number(['7', '-8'], tf.int32)
tf.strings.to_number([' 7 '], tf.int64)
tf.strings.to_number([' 7.5 '], tf.float64)
tf.strings.to_number('1_000')
tf.strings.to_number('1_000', tf.int32)
tf.strings.to_number('0x10', tf.int32)
tf.strings.to_number('99999999999', tf.int32)
tf.strings.to_number('', tf.float32)
tf.strings.to_number('3.5', tf.int32)
tf.strings.unicode_decode('é12', 'UTF-8')
tf.strings.unicode_decode(b'a\xffb', 'UTF-8')
tf.strings.unicode_decode(b'a\xffb', 'UTF-8', errors='ignore')
tf.strings.unicode_decode(b'a\xffb', 'UTF-8', replacement_char=63)
tf.strings.unicode_decode(b'a\xffb', 'UTF-8', errors='strict')
tf.strings.unicode_decode('a\nb', 'UTF-8', replace_control_characters=True)
tf.strings.unicode_encode([[104, 233], [8364, 33]], 'UTF-8')
tf.strings.unicode_encode([104, 233], 'UTF-16-BE')
tf.strings.unicode_encode([104, 1114112], 'UTF-8')
tf.strings.unicode_encode([104, 1114112], 'UTF-8', errors='strict')
tf.strings.unicode_split('é12', 'UTF-8')
tf.strings.unicode_transcode('é1', 'UTF-8', 'UTF-16-BE')
tf.strings.unicode_transcode([b'a\xffb'], 'UTF-8', 'UTF-8')
tf.strings.unicode_transcode(b'a\x00b', 'UTF-8', 'UTF-8', replace_control_characters=True)
tf.io.decode_base64(['aGVsbG8', 'aGk_'])
tf.io.encode_base64(['hello', 'hi?>'])
tf.io.encode_base64('hello', pad=True)
tf.io.decode_base64('%%%')
tf.io.decode_csv(['1,2.5,a', '-3,,"b,c"'], [0, 9., 'z'])
tf.io.decode_csv('1;2;3', [[0], [0], [0]], field_delim=';')
tf.io.decode_csv(['1,NA,3'], [0, 7, 0], na_value='NA')
tf.io.decode_csv(['1,2,3', '4,5,6'], [0, 0], select_cols=[0, 2])
tf.io.decode_csv(['1,"x""y"'], [0, ''])
tf.io.decode_csv(['1,a"b'], [0, ''], use_quote_delim=False)
tf.io.decode_csv(['1,2'], [0])
tf.io.decode_csv(['1,'], [0, tf.constant([], tf.int32)])
tf.io.decode_csv(['1,x'], [0, 0])
tf.io.decode_csv(['1.5'], [0])
tf.io.decode_raw(b'\x01\x00\x02\x00', tf.int16)
tf.io.decode_raw([b'\x01\x02', b'\x03\x04'], tf.uint8)
tf.io.decode_raw(b'\x01\x00\x02\x00', tf.int16, little_endian=False)
tf.io.decode_raw([b'\x00\x00\x80?', b'\x00\x00\x00@'], tf.float32)
tf.io.decode_raw([b'abc', b'd'], tf.uint8, fixed_length=2)
tf.io.decode_raw([b'abc', b'd'], tf.uint8)
tf.io.decode_raw(b'abc', tf.int16)
tf.io.parse_tensor(tf.io.serialize_tensor(a), tf.float32)
tf.io.parse_tensor(tf.io.serialize_tensor(words), tf.string)
tf.io.parse_tensor(tf.io.serialize_tensor(t), tf.bool)
tf.io.parse_tensor(tf.io.serialize_tensor(z), tf.complex64)
tf.io.parse_tensor(tf.io.serialize_tensor(tf.cast(a, tf.bfloat16)), tf.bfloat16)
tf.io.parse_tensor(tf.io.serialize_tensor(a), tf.int32)
tf.io.parse_tensor('junk', tf.int32)
tf.SparseTensor([[0, 1], [1, 2]], [1., 2.], [2, 3])
tf.SparseTensor([[0, 1], [1, 2]], [1., 2., 3.], [2, 3])
tf.sparse.SparseTensor([[0, 1], [1, 2]], [1, 2], [2, 3])
tf.sparse.from_dense([[0., 1., 0.], [2., 0., 3.]])
tf.sparse.from_dense(['', 'a'])
tf.sparse.to_dense(sp)
tf.sparse.to_dense(sp, default_value=-1.)
tf.sparse.eye(2, 3)
tf.sparse.expand_dims(sp, 1)
tf.sparse.expand_dims(sp)
tf.sparse.mask(tf.IndexedSlices(a, [1, 4], [5, 3]), [4]).values
tf.sparse.mask(tf.IndexedSlices(a, [1, 4], [5, 3]), [4]).indices
tf.sparse.reduce_max(sp)
tf.sparse.reduce_max(sp, 1)
tf.sparse.reduce_max(sp, 0, keepdims=True)
tf.sparse.reduce_sum(sp)
tf.sparse.reduce_sum(sp, 1)
tf.sparse.reduce_sum(sp, [0, 1], keepdims=True)
tf.sparse.reduce_sum(sp, 0, output_is_sparse=True)
tf.sparse.reorder(tf.SparseTensor([[1, 2], [0, 1]], [1., 2.], [2, 3]))
tf.sparse.reshape(sp, [2, -1])
tf.sparse.reshape(sp, [5, -1])
tf.sparse.transpose(sp)
tf.sparse.transpose(sp, [0, 1])
tf.debugging.is_numeric_tensor(a)
tf.debugging.is_numeric_tensor(words)
tf.debugging.is_numeric_tensor([1.])
"""


def expressions():
    """The expressions, one by one."""
    return [line for text in (DIFFERENTIABLE, OTHERS) for line in text.split("\n") if line]


def values(tf, np):
    """The names that the expressions use."""
    rng = np.random.default_rng(1)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    root = normal(3, 3)
    corners = rng.uniform(0, 0.6, (6, 2))
    arrays = {
        "a": normal(2, 3),
        "b": normal(2, 3),
        "p": rng.uniform(0.5, 2, (2, 3)).astype("float32"),
        "d": rng.normal(size=(2, 3)),
        "i": rng.integers(-4, 5, (2, 3)).astype("int32"),
        "t": rng.integers(0, 2, (2, 3)).astype(bool),
        "r": rng.integers(0, 2, (2, 3)).astype(bool),
        "m": root @ root.T + 3 * np.eye(3, dtype="float32"),
        "g": normal(3, 3),
        "v": normal(5),
        "z": normal(2, 3) + 1j * normal(2, 3),
        "q": normal(4, 4) + 1j * normal(4, 4),
        "x": rng.uniform(size=(2, 6, 6, 3)).astype("float32"),
        "n": rng.integers(0, 256, (6, 5, 3)).astype("uint8"),
        "big": rng.uniform(size=(2, 16, 16, 1)).astype("float32"),
        "k": normal(2, 4, 4, 4, 2),
        "w": normal(3, 3, 3, 4),
        "w3": normal(2, 2, 2, 2, 3),
        "boxes": np.concatenate([corners, corners + rng.uniform(0.2, 0.6, (6, 2))], 1).astype(
            "float32"
        ),
        "scores": rng.uniform(size=6).astype("float32"),
    }
    tensors = {name: tf.constant(value) for name, value in arrays.items()}
    places = [[0, 1], [0, 3], [2, 0]]
    return tensors | {
        "tf": tf,
        "words": tf.constant(["Abc d", "É1 ß2", "xyz", "  Ω"]),
        "sp": tf.SparseTensor(places, [1.5, -2.0, -3.0], [3, 4]),
    }


def flat(value, np):
    """The arrays and Python values of a result, in order; text as bytes."""
    if hasattr(value, "dense_shape"):
        value = [value.indices, value.values, value.dense_shape]
    if hasattr(value, "as_list"):
        value = np.array(value.as_list(), np.int64)
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in flat(part, np)]
    if value is None:
        return []
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype == object:
        array = np.array([bytes(v) for v in array.reshape(-1)], "S").reshape(array.shape)
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return [np.char.encode(array) if array.dtype.kind == "U" else array]


def evaluate(expression, tf, np):
    """The arrays that an expression gives, or the error that it raises."""
    try:
        return flat(eval(expression, values(tf, np)), np)
    except Exception as error:
        return error


def gradients(expression, tf, np):
    """Gradients of the sum of squares for the float operands that occur in the expression."""
    names = values(tf, np)
    watched = [n for n in ("a", "b", "p", "m", "v", "x", "big", "k", "w", "w3") if n in names]
    with tf.GradientTape() as tape:
        tape.watch([names[n] for n in watched])
        y = eval(expression, dict(names))
        loss = tf.reduce_sum(y * y)
    found = tape.gradient(loss, [names[n] for n in watched])
    return {
        n: tf.convert_to_tensor(g).numpy()
        for n, g in zip(watched, found, strict=True)
        if g is not None
    }
