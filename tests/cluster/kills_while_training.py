#!/usr/bin/env python3
"""One run in which a random process is killed (-9) again and again. It must lose nothing but the steps since its last checkpoint, end
with the weights of a run that nobody disturbed, bit for bit, and leave nothing.

  tests/cluster/kills_while_training.py --pipeshard build/dev/tools/pipeshard --seconds 600 --every 20

Three of four kills strike a worker, and the run starts again by itself (--restarts); the fourth strikes the coordinator, and the same
command is given again, as a scheduler does. Prints how long it took each time from the kill until a step was done again: median and
worst. Everything happens in process, network and mount namespaces of its own. Exit code: 0; 1 when something is wrong; 77 when this
machine lacks something.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from random_kills import ROOT, arguments_of, living, namespaces, skip, wait_until

SAVES = "1s"
RESUME_LIMIT = 30.0  # seconds


class Training:
    """The command, given again whenever its coordinator was killed."""

    def __init__(self, options, folder):
        self.folder = folder
        self.plan, self.saved, self.log, self.temporary = (os.path.join(folder, name) for name in ("plan", "saved", "log", "tmp"))
        self.pipeshard = options.pipeshard
        os.mkdir(self.temporary)
        subprocess.run([self.pipeshard, "plan", options.model, "--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "4",
                        "--optimizer", "adamw:lr=1e-4", "-o", self.plan], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "out"), "ab") as out, open(os.path.join(self.folder, "err"), "ab") as err:
            self.process = subprocess.Popen(
                [self.pipeshard, "run", self.plan, "--steps", "1000000000", "--checkpoint", self.saved, "--every", SAVES, "--restarts",
                 "1000000", "--log", self.log], cwd=self.temporary, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, "TMPDIR": self.temporary})

    def workers(self):
        return [pid for pid in living() if re.search(r" worker .*--rank \d+", " ".join(arguments_of(pid)))]

    def checkpoints(self):
        """Steps of those that are whole."""
        found = []
        for name in os.listdir(self.saved) if os.path.isdir(self.saved) else []:
            if re.fullmatch(r"step-\d+", name) and os.path.exists(os.path.join(self.saved, name, "COMMIT")):
                found.append(int(name.split("-")[1]))
        return found

    def events(self, kind):
        return [event for event in self.lines("events.jsonl", 0) if event["event"] == kind]

    def steps_after(self, moment):
        """The newest lines of steps.jsonl, of steps that were done after a time."""
        return [line for line in self.lines("steps.jsonl", 2_000_000) if line["time"] > moment]

    def lines(self, name, most_bytes):
        try:
            with open(os.path.join(self.log, name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if most_bytes and size > most_bytes:
                    file.seek(size - most_bytes)
                    file.readline()
                return [json.loads(line) for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        except FileNotFoundError:
            return []

    def kill(self, dice):
        """One process; what it was, when, and the newest checkpoint that was there."""
        newest = max(self.checkpoints(), default=0)
        is_coordinator = dice.random() < 0.25
        victims = [self.process.pid] if is_coordinator else self.workers()
        moment = time.time()
        os.kill(dice.choice(victims), signal.SIGKILL)
        if is_coordinator:
            self.process.wait()
            self.start()
        return ("coordinator" if is_coordinator else "worker"), moment, newest

    def resumed_since(self, moment):
        """(From which step, when the next one was done), or nothing yet."""
        events = [event for event in self.events("resumed") if event["time"] > moment]
        steps = self.steps_after(events[-1]["time"]) if events else []
        return (events[-1]["step"], steps[0]["time"]) if steps else None


def disturb(options, training):
    """The seconds that it took each time; what was wrong."""
    dice = random.Random(options.seed)
    seconds, wrong = [], []
    start = time.monotonic()
    if not wait_until(lambda: training.checkpoints() and len(training.workers()) == 4, RESUME_LIMIT):
        return seconds, ["the run has not begun"]
    number = 0
    while time.monotonic() - start < options.seconds:
        number += 1
        time.sleep(max(0.0, start + (number - dice.uniform(0.0, 0.5)) * options.every - time.monotonic()))
        victim, moment, newest = training.kill(dice)
        if not wait_until(lambda: training.resumed_since(moment), RESUME_LIMIT) or training.process.poll() is not None:
            return seconds, wrong + [f"no step within {RESUME_LIMIT:.0f} s after the {victim} was killed"]
        step, done = training.resumed_since(moment)
        seconds.append(done - moment)
        print(f"{time.monotonic() - start:6.1f} s: {victim} killed; on from step {step}, next step {seconds[-1]:.2f} s later", flush=True)
        if step < newest:
            wrong.append(f"went on from step {step} although step {newest} was saved")
        if not wait_until(lambda: len(training.workers()) == 4, RESUME_LIMIT):
            wrong.append("the workers are not complete")
    return seconds, wrong


def end(training):
    """Asks the run to end; what was wrong, and how many steps it has done."""
    training.process.send_signal(signal.SIGTERM)
    code = training.process.wait()
    wrong = [] if code == 75 else [f"asked to end, the run ended with {code}, not 75"]
    if not wait_until(lambda: not living(), 5):
        wrong.append(f"processes are left: {[arguments_of(pid)[:3] for pid in living()]}")
    if os.listdir("/dev/shm"):
        wrong.append(f"left in /dev/shm: {os.listdir('/dev/shm')}")
    if os.listdir(training.temporary):
        wrong.append(f"left in the temporary folder: {os.listdir(training.temporary)}")
    rubbish = [name for name in os.listdir(training.saved) if not re.fullmatch(r"step-\d+|LATEST", name)]
    if rubbish:
        wrong.append(f"left in the folder of checkpoints: {rubbish}")
    return wrong, max(training.checkpoints(), default=0)


def compare(training, steps):
    """With a run that nobody disturbs."""
    whole = os.path.join(training.folder, "whole")
    for command in (["run", training.plan, "--steps", str(steps), "--checkpoint", whole, "--every", "1h"],
                    ["checkpoint", training.saved, "--compare", whole]):
        done = subprocess.run([training.pipeshard, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout.strip().splitlines()[0])
    return [] if done.returncode == 0 else ["the weights differ from those of an undisturbed run"]


def run(options):
    with tempfile.TemporaryDirectory(prefix="kills.") as folder:
        training = Training(options, folder)
        seconds, wrong = disturb(options, training)
        if training.process.poll() is None:
            more, steps = end(training)
            wrong += more + (compare(training, steps) if steps else [])
        if wrong:
            with open(os.path.join(folder, "err"), encoding="utf-8", errors="replace") as file:
                print("".join(f"    | {line}" for line in file.readlines()[-20:]))
    if seconds:
        print(f"{len(seconds)} kills; to the next step: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")
    for text in wrong:
        print(f"FAILED: {text}")
    return 1 if wrong or not seconds else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--model", default="examples/gpt2.onnx")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=float, default=20, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.pipeshard = os.path.abspath(options.pipeshard)
    if options.inside:
        sys.exit(run(options))
    if subprocess.run([*namespaces(), "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        skip("no process, network and mount namespaces can be made here")
    prepare = 'ip link set lo up && mount -t tmpfs none /dev/shm && ulimit -c 0 && "$@"; exit $?'
    sys.exit(subprocess.run([*namespaces(), "sh", "-c", prepare, "sh", sys.executable, os.path.abspath(__file__), *sys.argv[1:],
                             "--inside"], check=False).returncode)


if __name__ == "__main__":
    main()
