"""make_lowering_cases.py FOLDER: test cases for the operators that pipeshard lowers, in the layout of ONNX's own suites
(CASE/model.onnx, CASE/test_data_set_0/{input,output}_N.pb), below FOLDER/float64 (judged in float64, to be compared tightly) and
FOLDER/others. tests/onnx_import/suite/lowering_cases_test.cc runs them.

Inputs are drawn from a generator that the case's name seeds, in float64 where the operator allows it. Expected outputs are those of
onnx.reference.ReferenceEvaluator. ONNX Runtime computes every case too, where it can (in float32 where it has no float64). A case on
which the two disagree must say whom we follow and why (`judge`, `why`); one on which they agree must not. The three judges:

  reference  ONNX's reference implementation
  runtime    ONNX Runtime, where the reference is wrong, or refuses
  formula    the case's own `expect`, numpy of one line, where both are wrong or refuse
"""
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

PREVIEW = "ai.onnx.preview.training"
# Whose outputs are not those of float64, though they are of that type, and why.
SINGLE = {
    **dict.fromkeys(("Attention", "GroupNormalization", "RMSNormalization"), "the standard itself has a step in float32"),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), "ONNX's body has a step in float32"),
    **dict.fromkeys(("Adam", "AffineGrid", "DeformConv", "GridSample", "LRN"), "the reference has a step in float32"),
}
onnxruntime.set_default_logger_severity(4)


class Real:
    """Uniform in [low, high); float64 where the operator allows it, unless `dtype` says otherwise."""

    def __init__(self, *shape, low=-1.0, high=1.0, dtype=None):
        self.shape, self.low, self.high, self.dtype = shape, low, high, dtype

    def draw(self, random, allowed):
        wide = "tensor(double)" in allowed
        numbers = random.uniform(self.low, self.high, self.shape)
        return np.asarray(numbers, self.dtype or (np.float64 if wide else np.float32))


class Whole:
    """Integers in [low, high)."""

    def __init__(self, *shape, low=0, high=10, dtype=np.int64):
        self.shape, self.low, self.high, self.dtype = shape, low, high, dtype

    def draw(self, random, allowed):
        return np.asarray(random.integers(self.low, self.high, self.shape), self.dtype)


class Given:
    """These elements. Of floating-point: in float64 where the operator allows it, unless `dtype` says otherwise."""

    def __init__(self, elements, dtype=None):
        self.elements, self.dtype = elements, dtype

    def draw(self, random, allowed):
        array = np.asarray(self.elements, self.dtype)
        if self.dtype is None and array.dtype == np.float64 and "tensor(double)" not in allowed:
            array = array.astype(np.float32)
        return array


class Case:
    def __init__(self, op_type, inputs, *, outputs=1, opset=22, domain="", constant=(), judge="reference", why="", expect=None,
                 never_runtime="", single=False, **attributes):
        self.op_type, self.outputs, self.opset, self.domain = op_type, outputs, opset, domain
        self.constant, self.judge, self.why, self.expect = constant, judge, why, expect
        self.single = single or op_type in SINGLE
        self.never_runtime = never_runtime  # why ONNX Runtime is not even asked
        self.attributes = attributes
        self.specs = inputs
        self.name = ""

    def place(self, number):
        """Its name, and what follows from it."""
        words = [str(value) for value in self.attributes.values() if isinstance(value, str) and value.isidentifier()]
        self.name = "_".join([self.op_type, str(number), f"opset{self.opset}", *words])
        schema = onnx.defs.get_schema(self.op_type, self.opset, self.domain)
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        self.inputs = []
        for position, spec in enumerate(self.specs):
            allowed = schema.inputs[min(position, len(schema.inputs) - 1)].types if schema.inputs else []
            self.inputs.append(None if spec is None else spec.draw(random, allowed))
        return self

    def model(self, inputs, results=None):
        """`results`: for the types of the outputs; None: let them be inferred."""
        names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
        output_names = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op_type, names, output_names, domain=self.domain, **self.attributes)
        values, initializers = [], []
        for i, array in enumerate(inputs):
            if array is None:
                continue
            if i in self.constant:
                initializers.append(numpy_helper.from_array(array, names[i]))
            else:
                element = helper.np_dtype_to_tensor_dtype(array.dtype)
                values.append(helper.make_tensor_value_info(names[i], element, array.shape))
        outputs = [helper.make_empty_tensor_value_info(name) for name in output_names]
        if results is not None:
            outputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(result.dtype), None)
                       for name, result in zip(output_names, results)]
        graph = helper.make_graph([node], self.name, values, outputs, initializers)
        opsets = [helper.make_opsetid("", self.opset if self.domain == "" else 18)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, self.opset))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, inputs):
        return {f"x{i}": array for i, array in enumerate(inputs) if array is not None and i not in self.constant}


def by_reference(case):
    """The outputs, or what stands against them."""
    try:
        model = case.model(case.inputs)
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, case.feeds(case.inputs))
        return [np.asarray(result) for result in results], ""
    except Exception as error:
        return None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def by_runtime(case):
    """The same of ONNX Runtime; in float32 where it has no float64."""
    if case.never_runtime:
        return None, case.never_runtime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    complaint = ""
    for narrow in (False, True):
        inputs = [array.astype(np.float32) if narrow and array is not None and array.dtype == np.float64 else array
                  for array in case.inputs]
        try:
            session = onnxruntime.InferenceSession(case.model(inputs).SerializeToString(), options)
            return session.run(None, case.feeds(inputs)), ""
        except Exception as error:
            complaint = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None, complaint


def difference(got, want):
    """What is different; "" if nothing is."""
    if len(got) != len(want):
        return f"{len(got)} outputs, not {len(want)}"
    for i, (a, b) in enumerate(zip(got, want)):
        if a.shape != b.shape:
            return f"output {i} has shape {a.shape}, not {b.shape}"
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
            at = np.argmax(~np.isclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True))
            return f"output {i}, element {at}: {a.flat[at]}, not {b.flat[at]}"
    return ""


def typed(case, results):
    """In the types that the standard gives the outputs: a judge may compute in others."""
    model = onnx.shape_inference.infer_shapes(case.model(case.inputs))
    types = [value.type.tensor_type.elem_type for value in model.graph.output]
    return [result.astype(helper.tensor_dtype_to_np_dtype(element)) if element else result
            for result, element in zip(results, types, strict=True)]


def judged(case):
    """The expected outputs. Exits where judges disagree and the case does not say so."""
    reference, against_reference = by_reference(case)
    runtime, against_runtime = by_runtime(case)
    disagreement = ""
    if reference is not None and runtime is not None:
        disagreement = difference(runtime, reference)
    if case.judge == "reference":
        if reference is None:
            sys.exit(f"{case.name}: the reference refuses ({against_reference}); ONNX Runtime says {runtime or against_runtime}")
        if bool(disagreement) != bool(case.why):
            sys.exit(f"{case.name}: ONNX Runtime and the reference: {disagreement or 'no difference'}; the case says '{case.why}'\n"
                     f"reference {reference}\nruntime {runtime}")
        return reference
    if not case.why:
        sys.exit(f"{case.name} does not say why it is not judged by the reference")
    if case.judge == "runtime":
        if runtime is None:
            sys.exit(f"{case.name}: ONNX Runtime refuses: {against_runtime}; the reference says {reference or against_reference}")
        if reference is not None and not disagreement:
            sys.exit(f"{case.name}: the reference agrees with ONNX Runtime")
        return runtime
    expected = [np.asarray(array) for array in case.expect(*case.inputs)]
    for name, results in (("the reference", reference), ("ONNX Runtime", runtime)):
        if results is not None and not difference(results, expected):
            sys.exit(f"{case.name}: {name} gives what the formula says; let it be the judge")
    return expected


def write(case, folder):
    expected = typed(case, judged(case))
    exact = case.judge != "runtime" and not case.single and all(array.dtype == np.float64 for array in expected)
    case_folder = folder / ("float64" if exact else "others") / case.name
    data = case_folder / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(case.model(case.inputs, expected), case_folder / "model.onnx")
    given = [array for i, array in enumerate(case.inputs) if array is not None and i not in case.constant]
    for kind, arrays in (("input", given), ("output", expected)):
        for i, array in enumerate(arrays):
            (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(np.ascontiguousarray(array)
                                                  if array.ndim else array).SerializeToString())


def main():
    import image_cases
    import layer_cases
    import tensor_cases
    folder = Path(sys.argv[1])
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    counts = {}
    for module in (tensor_cases, image_cases, layer_cases):
        for case in module.cases():
            number = counts[case.op_type] = counts.get(case.op_type, 0) + 1
            if case.place(number).name.startswith(only):
                write(case, folder)
    print(f"{sum(counts.values())} cases of {len(counts)} operators")


if __name__ == "__main__":
    sys.modules.setdefault("make_lowering_cases", sys.modules["__main__"])
    main()
