"""Writes a small model of operators that no example has, and a batch for it.

Usage: make_pools.py MODEL.onnx BATCH.npz

Transposed convolutions, average pools with and without the padding counted and with windows that reach beyond it, a maximum
over the whole image, Mish, LpNormalization; smooth in between, so that rounding does not decide a gradient.
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main(model_path, batch_path):
    random = np.random.default_rng(1)
    nodes, weights = [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array((random.standard_normal(shape) * 0.3).astype(np.float32), name))
        return name

    def node(op_type, *inputs, **attributes):
        output = f"{op_type}_{len(nodes)}".lower()
        nodes.append(helper.make_node(op_type, inputs, [output], name=output + "_node", **attributes))
        return output

    x = node("Tanh", node("Conv", "images", weight("conv.weight", 8, 3, 3, 3), weight("conv.bias", 8), pads=[1, 1, 1, 1]))
    x = node("ConvTranspose", x, weight("up.weight", 8, 6, 3, 3), weight("up.bias", 6), strides=[3, 3], pads=[1, 1, 1, 1],
             output_padding=[2, 2])
    x = node("AveragePool", node("Mish", x), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    x = node("ConvTranspose", x, weight("wide.weight", 6, 2, 2, 2), weight("wide.bias", 6), strides=[2, 2], dilations=[2, 2], group=3)
    x = node("AveragePool", node("Mish", x), kernel_shape=[2, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)
    x = node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    x = node("LpNormalization", node("Flatten", node("GlobalMaxPool", x)), axis=-1, p=2)
    x = node("Gemm", x, weight("head.weight", 6, 5), weight("head.bias", 5))
    nodes.append(helper.make_node("SoftmaxCrossEntropyLoss", [x, "labels"], ["loss"], name="loss_node", reduction="mean"))

    graph = helper.make_graph(
        nodes, "pools",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 9, 10]),
         helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, model_path)
    np.savez(batch_path, images=random.standard_normal((8, 3, 9, 10)).astype(np.float32), labels=random.integers(0, 5, 8))


if __name__ == "__main__":
    main(*sys.argv[1:])
