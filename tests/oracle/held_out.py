#!/usr/bin/env python3
"""The loss of held-out data, as `run --eval` computes it beside training, is ONNX Runtime's.

    held_out.py PIPESHARD

The examples are trained for four steps under several plans, with an evaluation at the end, and exported. PASS: ONNX
Runtime's loss of the exported file on all held-out rows at once, with batch normalisations and dropouts in inference mode,
is that of the log to 1e-6 (batch normalisations: 1e-5).
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

PLANS = {
    "one device": ["--cluster", "1x1", "--microbatches", "2"],
    "two stages": ["--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2"],
    "sharded": ["--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "2", "--method", "auto"],
}
TRAINED, HELD_OUT = 16, 22


def mlp(random, rows):
    return {name: random.standard_normal((rows, 32)).astype(np.float32) for name in ("x", "y")}


def tokens(random, rows):
    ids = random.integers(0, 64, (rows, 16))
    labels = np.where(random.random((rows, 16)) < 0.3, -100, ids)
    return {"input_ids": ids, "labels": labels}


def images(random, rows):
    return {"images": random.standard_normal((rows, 3, 32, 32)).astype(np.float32), "labels": random.integers(0, 10, rows)}


def with_dropouts(path, folder):
    """The same model with a dropout behind every LayerNormalization."""
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "dropout.ratio"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.bool_(True), "dropout.training"))
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type != "LayerNormalization":
            continue
        output = node.output[0]
        node.output[0] = output + ".whole"
        nodes.append(onnx.helper.make_node("Dropout", [node.output[0], "dropout.ratio", "dropout.training"], [output]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    written = os.path.join(folder, "dropping.onnx")
    onnx.save(model, written)
    return written


def in_inference_mode(path):
    """The model with its loss alone, as bytes."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]
        if node.op_type == "BatchNormalization":
            for attribute in [a for a in node.attribute if a.name == "training_mode"]:
                node.attribute.remove(attribute)
            del node.output[1:]
    produced = {name for node in model.graph.node for name in node.output}
    kept = [output for output in model.graph.output if output.name in produced]
    del model.graph.output[:]
    model.graph.output.extend(kept[:1])
    dead = [node for node in model.graph.node
            if node.op_type == "Identity" and node.input[0] not in produced | {i.name for i in model.graph.initializer}]
    for node in dead:
        model.graph.node.remove(node)
    return model.SerializeToString()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def trial(pipeshard, model, make, bound, plan, folder):
    random = np.random.default_rng(1)
    train, held_out = (os.path.join(folder, name) for name in ("train.npz", "held.npz"))
    np.savez(train, **make(random, TRAINED))
    arrays = make(random, HELD_OUT)
    np.savez(held_out, **arrays)
    place = tempfile.mkdtemp(dir=folder)
    at = lambda name: os.path.join(place, name)
    run(pipeshard, "plan", model, "--dim", "batch=8", *PLANS[plan], "-o", at("plan"))
    run(pipeshard, "run", at("plan"), "--data", train, "--steps", "4", "--eval", held_out, "--log", at("log"), "--checkpoint",
        at("saved"))
    run(pipeshard, "export", at("saved"), "-o", at("trained.onnx"))
    with open(os.path.join(at("log"), "evaluations.jsonl"), encoding="utf-8") as lines:
        ours = json.loads(lines.read().splitlines()[-1])["loss"]
    session = onnxruntime.InferenceSession(in_inference_mode(at("trained.onnx")), providers=["CPUExecutionProvider"])
    theirs = float(np.ravel(session.run(None, arrays)[0])[0])
    passed = abs(ours - theirs) <= bound * max(1, abs(theirs))
    print(f"{'PASS' if passed else 'FAIL'}  {os.path.basename(model)}, {plan}: {ours:.9g}, ONNX Runtime {theirs:.9g}")
    return passed


def main():
    pipeshard = os.path.abspath(sys.argv[1])
    onnxruntime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory() as folder:
        models = [("examples/mlp.onnx", mlp, 1e-6), ("examples/gpt2.onnx", tokens, 1e-6),
                  (with_dropouts("examples/gpt2.onnx", folder), tokens, 1e-6), ("examples/resnet.onnx", images, 1e-5)]
        results = [trial(pipeshard, model, make, bound, plan, folder) for model, make, bound in models for plan in PLANS]
    sys.exit(0 if all(results) else 1)


main()
