#!/usr/bin/env python3
"""Time of a training step with communication beside the computation, and without.

  benchmarks/overlap_benchmark.py [--pipeshard build/release/tools/pipeshard] [--width 1024] [--layers 8] [--batch 512] [--nodes]
  benchmarks/overlap_benchmark.py --receives [--width 256] [--layers 4] [--batch 16384] [--microbatches 8] [--nodes]

Two workers train a chain of `layers` square matrices (SGD): on halves of a batch, with gradients in buckets beside the backward pass or
behind it; or, with --receives, as two pipeline stages (1F1B), with receives posted ahead or not (--overlap-receives). Both sides are run in
turns, `rounds` times, and compared by the median of all steps but each run's first. --nodes: the workers are two nodes that talk
through Gloo (--data-plane curve: encrypted), over the
loopback or, with --hosts A,B and --prefix "ip netns exec host{}", between two network namespaces (tests/cluster/namespaces.sh makes
them, with a cable as slow as you like); else they share memory. Needs Python's onnx and numpy packages.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def write_model(path, width, layers):
    try:
        import numpy
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        sys.exit(f"skipped: {error}")
    random = numpy.random.default_rng(1)
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        weights.append(numpy_helper.from_array(random.normal(0, 1 / width**0.5, (width, width)).astype("float32"), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"h{i}"]))
        nodes.append(helper.make_node("Tanh", [f"h{i}"], [f"a{i}"]))
        value = f"a{i}"
    nodes.append(helper.make_node("Mul", [value, value], ["squares"]))
    nodes.append(helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [x], [loss], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def run_here(pipeshard, plan, steps, report):
    subprocess.run([pipeshard, "run", plan, "--steps", str(steps), "--json", report], check=True, stdout=subprocess.DEVNULL)


def run_on_nodes(pipeshard, plan, steps, report, folder, hosts, prefix, plane):
    key = pathlib.Path(folder) / "job.key"
    key.unlink(missing_ok=True)
    command = [pipeshard, "run", plan, "--steps", str(steps), "--json", report, "--threads", "1"]
    on_host = [prefix.format(i).split() for i in (0, 1)]
    coordinator = subprocess.Popen(on_host[0] + command + ["--listen", f"tcp://{hosts[0]}:*", "--key-file", str(key), "--data-plane", plane],
                                   stdout=subprocess.DEVNULL)
    nodes = [subprocess.Popen(on_host[i] + [pipeshard, "node", "--key-file", str(key), "--index", str(i), "--host", hosts[i]],
                              stdout=subprocess.DEVNULL) for i in (0, 1)]
    for process in [coordinator] + nodes:
        if process.wait(timeout=600) != 0:
            sys.exit(f"{process.args} failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", default="build/release/tools/pipeshard")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--bucket", default="4MiB")
    parser.add_argument("--receives", action="store_true")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--hosts", default="127.0.0.1,127.0.0.1")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--data-plane", default="private")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/chain.onnx"
        write_model(model, options.width, options.layers)
        beside_option = "on" if options.receives else options.bucket
        for side in ("off", beside_option):
            what = ["--stages", "uniform:2", "--microbatches", str(options.microbatches), "--overlap-receives", side]
            if not options.receives:
                what = ["--stages", "uniform:1", "--microbatches", "1", "--bucket", side]
            subprocess.run([options.pipeshard, "plan", model, "--cluster", "2x1" if options.nodes else "1x2", "--dim",
                            f"batch={options.batch}", "-o", f"{folder}/{side}.plan"] + what, check=True, stdout=subprocess.DEVNULL)
        seconds = {"off": [], beside_option: []}
        waits = {"off": [], beside_option: []}
        for _ in range(options.rounds):
            for side in seconds:
                plan, report = f"{folder}/{side}.plan", f"{folder}/{side}.json"
                if options.nodes:
                    run_on_nodes(options.pipeshard, plan, options.steps, report, folder, options.hosts.split(","), options.prefix,
                                 options.data_plane)
                else:
                    run_here(options.pipeshard, plan, options.steps, report)
                for step in json.loads(pathlib.Path(report).read_text())["steps"][1:]:
                    seconds[side].append(step["seconds"])
                    waits[side].append(max(step.get("transfer_seconds", [0])))
        behind, beside = (statistics.median(seconds[side]) for side in seconds)
        travelling = f"{options.layers * options.width**2 * 4 / 1e6:.0f} MB of gradients"
        if options.receives:
            travelling = f"{options.microbatches} messages of {options.batch // options.microbatches * options.width * 4 / 1e6:.1f} MB each way"
        between = "Gloo" if options.data_plane == "private" else "encrypted"
        print(f"{between if options.nodes else 'shared memory'}, {travelling}, {options.layers} x {options.width}, batch "
              f"{options.batch}: off {behind * 1e3:.1f} ms (of it in transfers {statistics.median(waits['off']) * 1e3:.1f}), beside "
              f"{beside * 1e3:.1f} ms ({statistics.median(waits[beside_option]) * 1e3:.1f}), ratio {beside / behind:.3f}")


if __name__ == "__main__":
    main()
