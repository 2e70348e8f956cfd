#!/usr/bin/env python3
"""What progress line, log, event files and metrics cost a run.

    watching.py PIPESHARD [--model MODEL] [--steps N] [--rounds N] [--work DIR] [-- PLAN OPTIONS]

Trains the same plan by turns without and with `--log` and `--metrics` (read once a second), on a terminal of 120 columns,
and prints for both: the median time of a step, and the processor time of the coordinator, which does all of it beside the
workers, per step and in percent of the step. The first tenth of the steps is left out.
"""
import argparse
import json
import os
import pty
import shutil
import statistics
import subprocess
import tempfile
import threading
import urllib.request


def processor_seconds(pid):
    """Of the process alone, which has ended and is not reaped."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command):
    """Runs it on a terminal; what the process itself has computed, in seconds."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(command, stdout=inside, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "120"})
    os.close(inside)

    def drain():
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seconds = processor_seconds(process.pid)
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    reader.join()
    os.close(terminal)
    return seconds


def scrape(url, ended):
    while not ended.wait(1):
        try:
            urllib.request.urlopen(url, timeout=5).read()
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeshard")
    parser.add_argument("--model", default="examples/gpt2.onnx")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=19473)
    parser.add_argument("--work")
    parser.add_argument("plan", nargs="*", default=["--dim", "batch=8", "--cluster", "1x2"])
    given = parser.parse_args()
    work = given.work or tempfile.mkdtemp()
    plan, log, record = (os.path.join(work, name) for name in ("plan", "log", "run.json"))
    subprocess.run([given.pipeshard, "plan", given.model, *given.plan, "-o", plan], check=True, stdout=subprocess.DEVNULL)
    ended = threading.Event()
    threading.Thread(target=scrape, args=(f"http://127.0.0.1:{given.port}/metrics", ended), daemon=True).start()
    results = {"without": ([], []), "with": ([], [])}
    base = [given.pipeshard, "run", plan, "--steps", str(given.steps), "--json", record]
    for _ in range(given.rounds):
        for name, (steps, processor) in results.items():
            shutil.rmtree(log, ignore_errors=True)
            extra = ["--log", log, "--metrics", str(given.port)] if name == "with" else []
            processor.append(run(base + extra) / given.steps)
            with open(record, encoding="utf-8") as file:
                times = [step["seconds"] for step in json.load(file)["steps"]]
            steps.append(statistics.median(times[len(times) // 10:]))
    ended.set()
    for name, (steps, processor) in results.items():
        step, own = statistics.median(steps), statistics.median(processor)
        print(f"{name:8}step {step * 1e3:.3f} ms (rounds {min(steps) * 1e3:.3f} to {max(steps) * 1e3:.3f}), "
              f"coordinator {own * 1e6:.0f} us of processor a step")
    more = statistics.median(results["with"][1]) - statistics.median(results["without"][1])
    step = statistics.median(results["without"][0])
    print(f"log and metrics: {more * 1e6:.0f} us of processor a step, {100 * more / step:.2f} % of its time")
    if not given.work:
        shutil.rmtree(work, ignore_errors=True)


main()
