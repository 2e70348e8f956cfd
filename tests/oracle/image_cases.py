"""Cases of make_lowering_cases.py: operators on images."""
import itertools

import numpy as np

from make_lowering_cases import Case, Given, Real, Whole, by_reference

F16, F32 = np.float16, np.float32
U8, I32, I64 = np.uint8, np.int32, np.int64


def norms_of_windows():
    for opset, size, attributes in ((1, 3, {}), (13, 2, {}), (13, 5, {"alpha": 0.1, "beta": 0.5, "bias": 2.0}), (22, 4, {"alpha": 0.3}),
                                    (22, 1, {"alpha": 0.3}), (22, 9, {"alpha": 0.3})):
        yield Case("LRN", [Real(5, 5, 3, 2)], opset=opset, size=size, **attributes)
    yield Case("LRN", [Real(1, 4, 3, 2)], size=3, alpha=0.5, judge="runtime",
               why="the reference normalises as many channels as there are examples")
    yield Case("LRN", [Real(1, 1, 2, 2)], size=3, alpha=0.5)
    yield Case("LRN", [Real(2, 4, 3)], size=3, alpha=0.5, judge="formula", why="both refuse an image of one axis",
               expect=lambda x: [x / (1 + 0.5 / 3 * (np.pad(x * x, ((0, 0), (1, 1), (0, 0)))[:, :-2] + x * x
                                                    + np.pad(x * x, ((0, 0), (1, 1), (0, 0)))[:, 2:])) ** 0.75])

    for p, opset in ((1, 2), (2, 13), (3, 21)):
        more = dict(p=p, opset=opset, judge="runtime", why="the reference has no GlobalLpPool")
        yield Case("GlobalLpPool", [Real(2, 3, 4, 5)], **more)
        yield Case("GlobalLpPool", [Real(2, 3, 4)], **more)
        yield Case("GlobalLpPool", [Real(1, 2, 3, 1, 2)], **more)
    yield Case("GlobalLpPool", [Real(2, 3, 4, 5)], judge="formula", why="the reference has no GlobalLpPool, ONNX Runtime none of opset 22",
               expect=lambda x: [np.sqrt((x * x).sum((2, 3), keepdims=True))])

    for opset in (2, 11, 18, 22):
        yield Case("LpPool", [Real(2, 3, 5, 6)], opset=opset, kernel_shape=[2, 3])
        yield Case("LpPool", [Real(2, 3, 5, 6)], opset=opset, kernel_shape=[2, 2], strides=[2, 1], p=3)
        yield Case("LpPool", [Real(1, 2, 6)], opset=opset, kernel_shape=[3], p=1)
        yield Case("LpPool", [Real(1, 2, 5, 5)], opset=opset, kernel_shape=[3, 3], auto_pad="VALID", strides=[2, 2])
        yield Case("LpPool", [Real(1, 2, 6, 5)], opset=opset, kernel_shape=[3, 2], pads=[1, 0, 1, 1])
        yield Case("LpPool", [Real(1, 2, 6, 5)], opset=opset, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER")
        yield Case("LpPool", [Real(1, 2, 6, 5)], opset=opset, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER")
    yield Case("LpPool", [Real(1, 2, 7, 7)], opset=18, kernel_shape=[2, 2], dilations=[2, 3])
    yield Case("LpPool", [Real(1, 2, 7, 7)], kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, judge="runtime",
               why="the reference scales up the sum of a window that ends beyond the image")
    yield Case("LpPool", [Real(1, 1, 3, 4, 5)], kernel_shape=[2, 2, 2])
    yield Case("LpPool", [Real(0, 2, 4, 4)], kernel_shape=[2, 2])
    yield Case("LRN", [Real(0, 3, 2, 2)], size=3)


def inverses():
    size = lambda *numbers: Given(list(numbers), I64)
    yield Case("Col2Im", [Real(2, 8, 9), size(4, 4), size(2, 2)], opset=18)
    yield Case("Col2Im", [Real(2, 8, 4), size(4, 4), size(2, 2)], strides=[2, 2], constant=(1, 2))
    yield Case("Col2Im", [Real(1, 6, 20), size(4, 5), size(3, 2)], pads=[1, 0, 1, 1])
    yield Case("Col2Im", [Real(1, 8, 6), size(4, 6), size(2, 2)], dilations=[2, 3])
    yield Case("Col2Im", [Real(1, 4, 4), size(5, 5), size(2, 2)], strides=[2, 2])
    yield Case("Col2Im", [Real(2, 6, 4), size(6), size(3)])
    yield Case("Col2Im", [Real(0, 4, 4), size(3, 3), size(2, 2)], judge="runtime", why="the reference refuses an empty batch")
    yield Case("Col2Im", [Real(1, 8, 8), size(3, 3, 3), size(2, 2, 2)])

    for opset in (9, 11, 22):
        places = Given([[[[5, 7], [13, 15]]]], I64)
        yield Case("MaxUnpool", [Real(1, 1, 2, 2), places], opset=opset, kernel_shape=[2, 2], strides=[2, 2])
        yield Case("MaxUnpool", [Real(1, 1, 2, 2), places, size(1, 1, 5, 5)], opset=opset, kernel_shape=[2, 2], strides=[2, 2],
                   constant=(2,),
                   why="ONNX Runtime counts the indices through the output's shape, the standard through the pooled image's")
    yield Case("MaxUnpool", [Real(0, 2, 2), Whole(0, 2, 2)], kernel_shape=[2], strides=[2])
    yield Case("MaxUnpool", [Real(2, 2, 2), Given([[[0, 3], [4, 7]], [[9, 11], [13, 14]]], I64)], kernel_shape=[2], strides=[2])
    yield Case("MaxUnpool", [Real(1, 1, 2, 2), Given([[[[0, 1], [3, 5]]]], I64)], kernel_shape=[2, 2], pads=[0, 0, 0, 1],
               strides=[1, 2])


def affine_grids():
    size = lambda *numbers: Given(list(numbers), I64)
    for align in (0, 1):
        yield Case("AffineGrid", [Real(2, 2, 3), size(2, 3, 4, 5)], opset=20, align_corners=align)
        yield Case("AffineGrid", [Real(2, 2, 3), size(2, 1, 2, 3)], align_corners=align, constant=(1,))
        yield Case("AffineGrid", [Real(1, 2, 3), size(1, 3, 2, 2)], align_corners=align)
        yield Case("AffineGrid", [Real(2, 3, 4), size(2, 1, 3, 2, 4)], align_corners=align)
    yield Case("AffineGrid", [Real(3, 2, 3), size(3, 1, 1, 4)])


def resized(shape, scales=None, sizes=None, opset=22, **more):
    given = Given(scales, F32) if scales is not None else None
    inputs = [Real(*shape), None, given, Given(sizes, I64) if sizes is not None else None]
    return Case("Resize", inputs[:3] if sizes is None else inputs, opset=opset, **more)


def resizes():
    transformations = ("half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
    for mode, transformation in itertools.product(("nearest", "linear", "cubic"), transformations):
        for scales in ([1., 1., 2., 1.5], [1., 1., 0.6, 0.8]):
            opset = 19 if transformation == "half_pixel_symmetric" else 13
            yield resized((1, 2, 5, 5), scales, opset=opset, mode=mode, coordinate_transformation_mode=transformation,
                          single=opset == 19)  # the length of the output is
    fractional = "a length of 7.5 is that to the reference, and 7 to ONNX Runtime; the standard says 'can be a fractional number'"
    for mode in ("nearest", "linear", "cubic"):
        for scales in ([2., 1.5], [0.5, 0.5]):
            yield resized((4, 6), scales, mode=mode, coordinate_transformation_mode="align_corners")
        yield resized((5, 5), [1.5, 1.], mode=mode, coordinate_transformation_mode="align_corners",
                      why=fractional)
    yield resized((6, 6), [0.7, 0.6], judge="runtime",
                  why="0.7 in float32 is less than 0.7, so that the middle of two elements is beyond it to the reference")
    yield resized((6, 6), [0.7, 0.6], coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    for rounding, scales in itertools.product(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"), ([2., 3.], [0.5, 0.5])):
        for transformation in ("asymmetric", "half_pixel", "align_corners"):
            yield resized((4, 6), scales, mode="nearest", nearest_mode=rounding, coordinate_transformation_mode=transformation)
    for mode in ("nearest", "linear", "cubic"):
        yield resized((1, 1, 4, 6), sizes=[1, 1, 7, 3], opset=11, mode=mode)
        yield resized((1, 1, 4, 6), sizes=[1, 1, 1, 9], opset=19, mode=mode)
        yield resized((1, 1, 1, 1), sizes=[1, 1, 3, 2], mode=mode)
        yield resized((1, 2, 4, 6), sizes=[7, 3], mode=mode, axes=[2, 3])
        yield resized((1, 2, 4, 6), [1.5, 0.5], mode=mode, axes=[3, 2])
        swapped = lambda x, roi, scales, mode=mode: by_reference(
            Case("Resize", [Given(x), None, Given(scales[::-1])], axes=[2, 3], mode=mode).place(0))[0]
        yield resized((1, 2, 4, 6), [1.5, 0.5], mode=mode, axes=[-1, -2], judge="formula", why="both refuse negative axes",
                      expect=swapped)
        yield resized((1, 2, 4, 6), [1., 1., 1., 1.], mode=mode)
    for policy in ("not_larger", "not_smaller"):
        for mode in ("nearest", "linear"):
            yield resized((1, 1, 4, 6), sizes=[8, 9], axes=[2, 3], keep_aspect_ratio_policy=policy, mode=mode)
    for antialias, outside in ((1, 0), (1, 1), (0, 1)):
        yield resized((1, 1, 6, 7), [1., 1., 0.6, 0.5], mode="cubic", antialias=antialias, exclude_outside=outside)
        yield resized((1, 1, 4, 5), [1., 1., 1.6, 1.5], mode="cubic", antialias=antialias, exclude_outside=outside)
    yield resized((1, 1, 6, 7), [1., 1., 0.6, 0.5], mode="linear", antialias=1)
    yield resized((1, 1, 6, 7), sizes=[1, 1, 4, 4], mode="linear", antialias=1)
    yield resized((1, 1, 6, 7), [1., 1., 0.6, 1.5], mode="cubic", cubic_coeff_a=-0.5)
    yield resized((7,), [1.7], mode="linear")
    yield resized((5, 6), [0.8, 1.3], mode="linear")
    yield resized((1, 1, 3, 4, 3), [1., 1., 2., 0.5, 1.4], mode="linear")
    yield resized((1, 1, 3, 4, 3), [1., 1., 2., 0.5, 1.4], mode="nearest")
    crop = dict(coordinate_transformation_mode="tf_crop_and_resize", opset=13, single=True)  # the regions are
    roi = lambda *numbers: Given(list(numbers), F32)
    for mode in ("nearest", "linear", "cubic"):
        yield Case("Resize", [Real(1, 1, 5, 6), roi(0., 0., 0.2, 0.3, 1., 1., 0.9, 0.8), None, Given([1, 1, 3, 4], I64)], mode=mode, **crop)
    yield Case("Resize", [Real(1, 1, 5, 6), roi(0.2, 0.3, 0.9, 0.8), None, Given([3, 4], I64)], axes=[2, 3], mode="linear",
               **{**crop, "opset": 19})
    yield Case("Resize", [Real(1, 1, 5, 6), roi(0.2, 0.3, 0.9, 0.8), Given([1.5, 1.7], F32)], axes=[2, 3], mode="linear", why=fractional,
               **{**crop, "opset": 19})
    yield Case("Resize", [Real(1, 1, 5, 6), roi(0., 0., 0.4, 0.6, 1., 1., 1.2, 1.7), None, Given([1, 1, 3, 3], I64)],
               mode="linear", extrapolation_value=10.0, **crop)
    yield Case("Resize", [Real(1, 1, 4, 4, dtype=F16), None, Given([1., 1., 2., 2.], F32)], mode="linear")
    for mode in ("linear", "nearest"):
        yield Case("Resize", [Real(0, 1, 4, 4), None, Given([1., 1., 2., 2.], F32)], mode=mode, judge="runtime",
                   why="the reference refuses an empty batch")
    yield Case("Resize", [Whole(1, 1, 4, 4, low=-9, dtype=I32), None, Given([1., 1., 1.5, 2.], F32)], mode="nearest")
    yield Case("Resize", [Whole(1, 1, 4, 4, high=256, dtype=U8), None, Given([1., 1., 2., 0.5], F32)], mode="nearest")

    upsample = dict(judge="runtime", why="the reference's Upsample knows whole factors and the nearest only")
    whole = Given([1., 1., 2., 3.], F32)
    yield Case("Upsample", [Real(1, 2, 3, 2), whole], opset=9, mode="nearest", constant=(1,))
    yield Case("Upsample", [Real(2, 3), Given([2., 1.], F32)], opset=9)
    yield Case("Upsample", [Real(1, 2, 3, 2)], opset=7, mode="nearest", scales=[1., 1., 2., 2.], judge="runtime",
               why="the reference does not know scales that are an attribute")
    yield Case("Upsample", [Real(1, 2, 3, 2)], opset=7, mode="linear", scales=[1., 1., 2., 1.5], judge="runtime",
               why="the reference does not know scales that are an attribute")
    yield Case("Upsample", [Real(1, 2, 3, 4), Given([1., 1., 1.5, 2.5], F32)], opset=9, mode="linear", **upsample)
    yield Case("Upsample", [Real(1, 2, 3, 4), Given([1., 1., 1.5, 2.5], F32)], opset=9, mode="nearest", **upsample)
    yield Case("Resize", [Real(1, 2, 3, 4), Given([1., 1., 1.5, 2.], F32)], opset=10, mode="linear", judge="runtime",
               why="the reference has no Resize of opset 10")
    yield Case("Resize", [Real(1, 2, 3, 4), Given([1., 1., 2., 2.], F32)], opset=10, judge="runtime",
               why="the reference has no Resize of opset 10")


def samplings():
    grid = lambda *shape: Real(*shape, low=-1.3, high=1.3)
    old = dict(judge="runtime", why="the reference does not know the names of the modes of opset 16")
    border = dict(judge="runtime",
                  why="the reference brings the place back to the border, ONNX Runtime and PyTorch the elements around it")
    for opset, modes in ((16, ("bilinear", "nearest", "bicubic")), (20, ("linear", "nearest", "cubic"))):
        for mode, padding, align in itertools.product(modes, ("zeros", "border", "reflection"), (0, 1)):
            more = old if mode.startswith("bi") else border if (mode, padding) == ("cubic", "border") else {}
            yield Case("GridSample", [Real(2, 3, 4, 5), grid(2, 3, 2, 2)], opset=opset, mode=mode, padding_mode=padding,
                       align_corners=align, **more)
    for mode, align in itertools.product(("linear", "nearest"), (0, 1)):
        yield Case("GridSample", [Real(1, 2, 3, 4, 2), grid(1, 2, 1, 3, 3)], opset=20, mode=mode, align_corners=align)
    yield Case("GridSample", [Real(1, 1, 1, 1), grid(1, 2, 3, 2)])
    for mode in ("linear", "nearest", "cubic"):
        yield Case("GridSample", [Real(2, 3, 5), grid(2, 4, 1)], opset=20, mode=mode)
    yield Case("GridSample", [Real(1, 1, 4, 4), Real(1, 3, 3, 2, low=-5, high=5)], padding_mode="reflection")
    yield Case("GridSample", [Real(1, 1, 4, 4), Real(1, 3, 3, 2, low=-5, high=5)], padding_mode="border", mode="cubic", opset=20,
               **border)
    for examples, lines in ((2, 0), (0, 2)):
        yield Case("GridSample", [Real(examples, 3, 4, 5), grid(examples, lines, 2, 2)], opset=20, judge="runtime",
                   why="the reference refuses an empty grid")

    for opset in (10, 16, 22):
        rois = Given([[0., 0., 4., 5.], [1., 2., 3.5, 6.], [0.5, 0.2, 5.5, 5.9]])
        inputs = [Real(2, 3, 6, 7), rois, Given([0, 1, 1], I64)]
        more = dict(opset=opset, sampling_ratio=2)
        if opset < 16:
            more.update(judge="runtime", why="the reference takes half a pixel off, as is the default since opset 16")
        yield Case("RoiAlign", inputs, output_height=2, output_width=3, **more)
        yield Case("RoiAlign", inputs, output_height=2, output_width=2, spatial_scale=0.5, **more)
        yield Case("RoiAlign", inputs, output_height=1, output_width=1, mode="max", **more)
        if opset >= 16:
            yield Case("RoiAlign", inputs, opset=opset, output_height=3, output_width=2, sampling_ratio=2,
                       coordinate_transformation_mode="output_half_pixel")
    yield Case("RoiAlign", [Real(1, 2, 5, 5), Given([[-2., -1., 9., 8.]]), Given([0], I64)], output_height=2, output_width=2,
               sampling_ratio=2)
    yield Case("RoiAlign", [Real(1, 2, 5, 5), Real(0, 4), Whole(0)], sampling_ratio=2)
    yield Case("RoiAlign", [Real(1, 2, 5, 5), Given([[2., 2., 2.1, 2.1]]), Given([0], I64)], sampling_ratio=2)

    for opset in (19, 22):
        offset = lambda *shape: Real(*shape, low=-1.5, high=1.5)
        yield Case("DeformConv", [Real(1, 1, 4, 4), Real(1, 1, 2, 2), offset(1, 8, 3, 3)], opset=opset)
        yield Case("DeformConv", [Real(2, 3, 5, 4), Real(2, 3, 2, 2), offset(2, 8, 4, 3), Real(2), Real(2, 4, 4, 3)], opset=opset)
        yield Case("DeformConv", [Real(1, 4, 5, 5), Real(4, 2, 2, 2), offset(1, 16, 6, 6), Real(4)], opset=opset, group=2,
                   offset_group=2, pads=[1, 1, 1, 1])
        yield Case("DeformConv", [Real(1, 2, 6, 6), Real(3, 2, 2, 2), offset(1, 8, 3, 3)], opset=opset, strides=[2, 2],
                   dilations=[1, 2], pads=[0, 0, 1, 1])
        yield Case("DeformConv", [Real(0, 2, 4, 4), Real(3, 2, 2, 2), offset(0, 8, 3, 3)], opset=opset)
        yield Case("DeformConv", [Real(1, 2, 6, 6), Real(3, 2, 2, 2), offset(1, 8, 5, 5), None, Real(1, 4, 5, 5)], opset=opset,
                   kernel_shape=[2, 2])


def cases():
    for family in (norms_of_windows, inverses, affine_grids, resizes, samplings):
        yield from family()
