#!/usr/bin/env python3
"""Many workers on one machine, again and again: a job of tiny programs is started, run to its end, or killed (a worker, the coordinator);
nothing may stay, and the coordinator may not grow with the steps.

  tests/cluster/soak.py --pipeshard build/dev/tools/pipeshard --ranks 256 --rounds 3

Prints per round the seconds until the first step and until the end, steps a second, descriptors and threads of a worker, and the memory of
coordinator and workers. Exit code: 0; 1 when a round failed; 77 when this machine has too little memory or descriptors.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

from random_kills import ROOT, living, wait_until

MEMORY_OF_WORKER = 24 << 20


def field(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(rf"^{name}:\s+(\d+)", file.read(), re.MULTILINE).group(1))


def workers_of(coordinator):
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == coordinator:
                    found.append(int(name))
        except OSError:
            pass
    return found


def round_of(options, plan, fault):
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        steps = options.steps if fault == "none" else 10**7  # those that are hurt are at work then
        job = subprocess.Popen([options.pipeshard, "run", plan, "--steps", str(steps), "--threads", "1"], stdout=subprocess.PIPE,
                               stderr=errors, text=True)
        first = None
        workers, memory, figures = [], [0], (0, 0, 0)
        for line in job.stdout:
            if not line.startswith("step"):
                continue
            memory.append(field(job.pid, "VmRSS"))
            if first is None:
                first = time.monotonic() - start
                workers = workers_of(job.pid)
                figures = (len(os.listdir(f"/proc/{workers[0]}/fd")), field(workers[0], "Threads"), field(workers[0], "VmRSS") // 1024)
                if fault == "worker":
                    os.kill(workers[len(workers) // 2], signal.SIGKILL)
                if fault == "coordinator":
                    job.kill()
                if fault != "none":
                    break  # it has no memory to look at any more
        job.stdout.read()
        code = job.wait()
        seconds = time.monotonic() - start
        errors.seek(0)
        said = errors.read().strip().splitlines()
    wanted = {"none": 0, "worker": 69, "coordinator": -9}[fault]
    wait_until(lambda: not set(workers) & set(living()), 10)
    left = set(workers) & set(living())
    good = code == wanted and not left and len(workers) == options.ranks
    print(f"{'ok' if good else 'FAILED'}: {len(workers)} workers, fault: {fault}; exit code {code}; first step after {first or 0:.1f} s, "
          f"end after {seconds:.1f} s; a worker has {figures[0]} descriptors, {figures[1]} threads, {figures[2]} MiB; "
          f"coordinator {memory[min(1, len(memory) - 1)] // 1024} MiB at the first line of steps, {memory[-1] // 1024} MiB at the last; {len(left)} left", flush=True)
    if not good:
        print("\n".join("    | " + line for line in said[-5:]))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    options.pipeshard = os.path.abspath(options.pipeshard)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < options.ranks * MEMORY_OF_WORKER:
        print(f"skipped: {options.ranks} workers need {options.ranks * MEMORY_OF_WORKER >> 30} GiB, {free >> 30} are free")
        sys.exit(77)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    good = True
    with tempfile.TemporaryDirectory(prefix="soak.") as folder:
        plan = os.path.join(folder, "plan")
        start = time.monotonic()
        subprocess.run([options.pipeshard, "plan", "examples/mlp.onnx", "--cluster", f"1x{options.ranks}", "--stages", "uniform:1",
                        "--microbatches", "1", "--dim", f"batch={options.ranks}", "-o", plan], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        print(f"planned in {time.monotonic() - start:.1f} s", flush=True)
        for number in range(options.rounds):
            good &= round_of(options, plan, ["none", "worker", "coordinator"][number % 3])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
