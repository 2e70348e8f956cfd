#!/usr/bin/env python3
"""The first inputs of the fuzzers' corpus: small files of every format, made by pipeshard itself. What fuzzers find lies beside them
under other names and stays.

  tests/fuzz/make_corpus.py --pipeshard build/dev/tools/pipeshard --suites ~/.cache/pipeshard/onnx-1.19.1/share/suites
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Operators whose attributes decide shapes.
MODELS = ["conv_with_strides_padding", "convtranspose_output_shape", "averagepool_2d_dilations", "maxpool_2d_ceil", "gathernd_example_int32_batch_dim1",
          "split_variable_parts_2d_opset18", "reshape_negative_dim", "resize_upsample_sizes_nearest", "lstm_with_peepholes", "loop11",
          "if", "slice_neg_steps", "tile", "depthtospace_example", "einsum_batch_matmul", "attention_4d_gqa", "scan9_sum", "col2im",
          "layer_normalization_2d_axis0", "range_int32_type_negative_delta", "center_crop_pad_crop", "gridsample_bilinear"]
OPTIONS = ["c2x4", "cp3.16xlarge:8", "gbias|norm:weight_decay=0", "lcross-entropy:logits,labels,smoothing=0.1", "lA+0.5*B", "mmegatron:2,2,1",
           "oadamw:lr=1e-3,schedule=cosine,warmup=10,steps=100", "p(a|b)*\\d+$", "rfull", "s1f1b", "sinterleaved:2", "xw[0]=S0"]


def save(target, name, content):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        content = content if isinstance(content, bytes) else content.encode()
        file.write(content.replace(os.fsencode(ROOT) + b"/", b""))  # paths of no machine


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def plans(pipeshard, folder):
    """Two plans, and what a run of one leaves."""
    mlp = os.path.join(ROOT, "examples/mlp.onnx")
    for name, arguments in {"stages": ["--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "8"],
                            "sharded": ["--cluster", "1x2", "--stages", "uniform:1", "--method", "auto", "--optimizer", "adamw:lr=1e-3"]}.items():
        plan = os.path.join(folder, name)
        subprocess.run([pipeshard, "plan", mlp, "-o", plan, *arguments], check=True, stdout=subprocess.DEVNULL)
        kinds = [read(plan, "kinds", kind) for kind in sorted(os.listdir(os.path.join(plan, "kinds")))]
        save("plan", name, read(plan, "plan.json"))
        save("kind", name, kinds[0])
        save("ranks", name, read(plan, "ranks.json"))
        save("weights", name, read(plan, "weights.json"))
        save("programs", name, b"\f".join([read(plan, "ranks.json"), *kinds]))
    validated = os.path.join(folder, "validated")
    subprocess.run([pipeshard, "validate", mlp, "-o", validated, "--steps", "1", "--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2"],
                   check=True, stdout=subprocess.DEVNULL)
    save("trace", "validated", read(validated, "trace.json"))
    save("validation", "one_step", read(validated, "validation.json"))
    checkpoints = os.path.join(folder, "checkpoints")
    subprocess.run([pipeshard, "run", os.path.join(folder, "stages"), "--steps", "1", "--checkpoint", checkpoints], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path, _, files in os.walk(checkpoints):
        for name in files:
            if name.endswith(".json"):
                save("checkpoint", "one_step", read(path, name))


def models(suites):
    save("model", "mlp", read(ROOT, "examples/mlp.onnx"))
    for name in MODELS:
        case = os.path.join(suites, "node", "test_" + name)
        if os.path.exists(case):
            save("preparation", name, read(case, "model.onnx"))
            save("model", name, read(case, "model.onnx"))
    save("tensor", "input", read(suites, "node/test_abs/test_data_set_0/input_0.pb"))


def texts():
    save("cluster", "two_nodes", json.dumps({"version": 2, "nodes": [{"devices": 2, "memory": "1GiB"}], "links": []}))
    save("stages", "two", json.dumps({"version": 1, "stages": [{"layers": [0, 1], "devices": [0]}, {"layers": [2, 3], "devices": [1]}]}))
    save("profile", "empty", json.dumps({"version": 1, "devices": [], "links": []}))
    save("control", "ready", json.dumps({"version": 2, "job": "job", "generation": 0, "rank": 0, "sequence": 1, "type": "ready", "body": {}}))
    for number, text in enumerate(OPTIONS):
        save("option", f"{number:02}", text)
    save("table", "csv", "cx[0],x[1],ids\n0.5,1e-3,7\n\"-1\",2,3\n")
    save("table", "json", 'j{"x": [0.5, 1e-3], "ids": 7}\n{"x": [1, -2], "ids": 8}\n')
    save("table", "lengths", 'l{"ids": [1, 2, 3]}\n{"ids": [4]}\n')
    files = [["plan", "gpt2.plan/plan.json", "00112233445566aa"], ["weights", "gpt2.onnx.data", ""]]
    save("identity", "two_hosts", "\f".join(json.dumps(part) for part in (files, [[*files[0][:2], "ffffffffffffffff"], files[1]])))
    step = {"step": 1, "loss": 5.5, "seconds": 0.08, "examples_per_second": 98.7, "learning_rate": 3e-4, "gradient_norm": 1.2,
            "tokens_per_second": 6317}
    events = [{"time": 1, "event": "resumed", "step": 1}, {"event": "restart", "step": 2, "from": 1, "seconds": 1.7, "text": "rank 1"}]
    lines = [line for i in range(2) for line in ({**step, "step": i + 1, "loss": 5.5 - i}, {"step": i + 1, "loss": 5.51, "seconds": 1.3}, events[i])]
    save("history", "two_steps", "\f".join(json.dumps(line) for line in lines))
    save("schedule", "one_f_one_b", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    save("schedule", "zero_bubble", "0F0,0F1,,0I0,0W0,0I1,0W1\n,1F0,1I0,1W0,1F1,1I1,1W1\n")
    save("schedule", "overlapped", "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n")
    layer = "forward_compute_time=1.5, backward_compute_time=2.25, activation_size={}, parameter_size=7168.000"
    save("pipedream", "branch", f"node1 -- Input0 -- {layer.format('8.0')}\nnode2 -- Conv2d(3, 64) -- {layer.format('16.0')}\n"
         f"node3 -- Split -- {layer.format('[8.0; 16.0]')}\nnode4 -- Add -- {layer.format('8.0')}\n"
         "\tnode1 -- node2\n\tnode2 -- node3\n\tnode2 -- node4\n\tnode3 -- node4\n")
    vocabulary = {chr(c): i for i, c in enumerate(range(33, 127))} | {"\u0120": 94, "th": 95}
    rules = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
             "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                       "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": ["t h"]}}
    save("tokenizer", "pairs", json.dumps(rules))
    added = [{"id": 96 + i, "content": text, "single_word": False, "lstrip": i > 0, "rstrip": i > 0, "normalized": i > 0, "special": True}
             for i, text in enumerate(["<|endoftext|>", "some"])]
    pieces = [{"type": "Split", "pattern": {"Regex": r"\p{L}+|\s+(?!\S)|[^\r\n]"}, "behavior": "Isolated", "invert": False},
              {"type": "Split", "pattern": {"String": "ex"}, "behavior": "Isolated", "invert": False}, {"type": "Digits", "individual_digits": True},
              {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    model = {**rules["model"], "ignore_merges": True, "merges": [["t", "h"]]}
    save("tokenizer", "pieces", json.dumps({**rules, "added_tokens": added, "normalizer": {"type": "NFC"}, "model": model,
                                            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pieces}}))
    save("text", "words", "Then  12 w\u00f6rds e\u0301, <|end|> and\n\tspaces \U0001f600  ")
    keys = {name: "0123456789abcdefghijklmnopqrstuvwxyzABCD" for name in ("server_public", "client_public", "client_secret")}
    save("ticket", "one", json.dumps({"pipeshard_ticket": 1, "job": "job", "generation": 0, "endpoint": "tcp://10.0.0.1:7000", **keys}))

def arrays(folder):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"k": "v"}}).encode()
    save("safetensors", "one", struct.pack("<Q", len(header)) + header + bytes(8))
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(8)
    save("npy", "two_rows", array)
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        path = os.path.join(folder, name)
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr(zipfile.ZipInfo("x.npy", (1980, 1, 1, 0, 0, 0)), array, method)
        save("npz", name, read(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--suites", required=True)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="corpus.")
    try:
        plans(os.path.abspath(options.pipeshard), folder)
        models(options.suites)
        texts()
        arrays(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
