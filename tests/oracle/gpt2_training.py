#!/usr/bin/env python3
"""A small GPT-2 learns the bytes of a text on four workers, in all the ways that must lead to the same model.

    gpt2_training.py PIPESHARD [--steps 500] [--double-steps 50] [--kills 10] [--only REGEX] [--work DIR]

AdamW with decay groups, a cosine rate with warm-up, gradients clipped to a norm of 1, dropout of 0.1 unless said otherwise. The text
is the GNU General Public License of Debian's base-files.

    device   the loss of every step is that of one device, to 1e-3
    double   without dropout, in float64: that of PyTorch, to 1e-3
    single   without dropout, in float32: that of PyTorch, to 1e-2
    kills    ranks are killed (-9) at random steps, and the run starts again by itself: the same weights, bit for bit
    fewer    two of four nodes are killed, one after the other: the run goes on with 3 and then 2 workers; the loss of
             every step is that of the run that lost nothing, to 1e-4

All bounds are relative. Prints what was found; exit code 1 where a bound is missed. Needs what real_models.py needs.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

EXPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "export")
sys.path.append(EXPORT)
import onnx_file  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"
SEQUENCE, BATCH, WORKERS = 32, 16, 4
RATE, WARMUP, DECAY, NO_DECAY = 1e-3, 20, 0.1, "bias|ln_"


class Trainings:
    """Plans and runs below one folder."""

    def __init__(self, pipeshard, work, steps):
        self.pipeshard, self.work, self.steps = pipeshard, work, steps
        self.data = self.at("text.u16")
        self.call("tokens", TEXT, "-o", self.data)
        for name, dropout in (("dropping", "0.1"), ("plain", "0")):
            subprocess.run([sys.executable, "-B", os.path.join(EXPORT, "export.py"), "gpt2", "--seq", str(SEQUENCE), "--dropout",
                            dropout, "--output", self.at(name + ".onnx")], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)

    def at(self, *names):
        return os.path.join(self.work, *names)

    def call(self, *arguments):
        done = subprocess.run([self.pipeshard, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"pipeshard {' '.join(arguments)}: {done.stderr[-1500:]}")

    def plan(self, name, model, *options):
        self.call("plan", self.at(model + ".onnx"), "--data", self.data, "--dim", f"batch={BATCH}", "--microbatches", "4", "--optimizer",
                  f"adamw:lr={RATE},weight_decay={DECAY},schedule=cosine,warmup={WARMUP},steps={self.steps}",
                  "--group", f"{NO_DECAY}:weight_decay=0", "--clip-norm", "1", "-o", self.at(name), *options)
        return self.at(name)

    def four_workers(self):
        """Done once: what others are compared with."""
        if not os.path.isdir(self.at("four.plan")):
            self.plan("four.plan", "dropping", "--cluster", f"1x{WORKERS}", "--stages", "uniform:2")
            self.losses("four", self.at("four.plan"), "--checkpoint", self.at("four.saved"), "--every", "1h")
        return self.losses_of("four")

    def losses(self, name, plan, *options, steps=None):
        self.call("run", plan, "--data", self.data, "--steps", str(steps or self.steps), "--threads", "1", "--log",
                  self.at(name + ".log"), *options)
        return self.losses_of(name)

    def losses_of(self, name):
        with open(self.at(name + ".log", "steps.jsonl"), encoding="utf-8") as file:
            return np.array([json.loads(line)["loss"] for line in file])

    def steps_done(self, name):
        try:
            with open(self.at(name + ".log", "steps.jsonl"), "rb") as file:
                lines = file.read().splitlines()
            return json.loads(lines[-1])["step"] if lines else 0
        except (OSError, ValueError):
            return 0


def batches(data, steps):
    """As pipeshard reads them: window after window, over and over; the last batch of an epoch has fewer."""
    tokens = np.fromfile(data, dtype="<u2").astype(np.int64)
    rows = tokens[:len(tokens) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE)
    per_epoch = -(-len(rows) // BATCH)
    for step in range(steps):
        begin = step % per_epoch * BATCH
        yield torch.from_numpy(rows[begin:begin + BATCH])


def torch_losses(model_path, data, total, steps, dtype):
    """PyTorch's own training, nothing of the file but the initial weights."""
    model = onnx_file.load(model_path)
    module = onnx_file.rebuild(model).to(dtype)
    named = dict(module.named_parameters())
    kept = [value for name, value in named.items() if not re.search(NO_DECAY, name)]
    rest = [value for name, value in named.items() if re.search(NO_DECAY, name)]
    optimizer = torch.optim.AdamW([{"params": kept}, {"params": rest, "weight_decay": 0.0}], lr=RATE, weight_decay=DECAY)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, total)
    losses = []
    for ids in batches(data, steps):
        optimizer.zero_grad()
        loss = module(input_ids=ids, labels=ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return np.array(losses)


def compare(name, got, want, bound):
    """One line of result; whether it is good."""
    if len(got) != len(want):
        print(f"{name}: FAIL, {len(got)} steps instead of {len(want)}", flush=True)
        return False
    errors = np.abs(got - want) / np.abs(want)
    good = bool(errors.max() <= bound)
    print(f"{name}: {'PASS' if good else 'FAIL'}; {len(got)} steps, loss {got[0]:.4f} -> {got[-1]:.4f}; largest difference "
          f"{errors.max():.1e} (step {errors.argmax() + 1}), bound {bound:.0e}", flush=True)
    return good


def check_device(trainings, _):
    one = trainings.plan("one.plan", "dropping", "--cluster", "1x1")
    return compare("four workers and one device", trainings.four_workers(), trainings.losses("one", one), 1e-3)


def check_torch(trainings, name, steps, dtype, bound):
    plan = trainings.plan(name + ".plan", "plain", "--cluster", f"1x{WORKERS}", "--stages", "uniform:2", "--precision", name)
    got = trainings.losses(name, plan, steps=steps)
    want = torch_losses(trainings.at("plain.onnx"), trainings.data, trainings.steps, steps, dtype)
    return compare(f"four workers and PyTorch, {name}", got, want, bound)


def processes_of(text):
    """Those whose command line has it, other than this one."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if int(name) != os.getpid() and text in file.read().decode(errors="replace").replace("\0", " "):
                    found.append(int(name))
        except OSError:
            pass  # it has just ended
    return found


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def check_kills(trainings, options):
    trainings.four_workers()
    dice = random.Random(options.seed)
    steps = sorted(dice.sample(range(1, trainings.steps - 5), options.kills))
    with open(trainings.at("kills.err"), "wb") as errors:
        process = subprocess.Popen(
            [trainings.pipeshard, "run", trainings.at("four.plan"), "--data", trainings.data, "--steps", str(trainings.steps),
             "--checkpoint", trainings.at("kills.saved"), "--every", "20", "--restarts", str(options.kills), "--threads",
             "1", "--log", trainings.at("kills.log")], stdout=subprocess.DEVNULL, stderr=errors)
    killed = []
    for step in steps:
        ranks = " --directory " + trainings.at("four.plan") + " "
        if not wait_for(lambda: trainings.steps_done("kills") >= step and len(processes_of(ranks)) == WORKERS, process):
            break
        os.kill(dice.choice(processes_of(ranks)), signal.SIGKILL)
        killed.append(trainings.steps_done("kills"))
        # its death is known, and the workers of the next attempt are others
        wait_for(lambda: not processes_of(ranks) or len(processes_of(ranks)) == WORKERS, process)
        time.sleep(0.1)
    code = process.wait()
    compared = subprocess.run([trainings.pipeshard, "checkpoint", trainings.at("four.saved"), "--compare", trainings.at("kills.saved")],
                              capture_output=True, text=True, check=False)
    good = code == 0 and compared.returncode == 0 and len(killed) == options.kills
    print(f"{len(killed)} kills after steps {killed}: {'PASS' if good else 'FAIL'}; exit code {code}; "
          f"{compared.stdout.strip().splitlines()[0].split(': ')[-1]}", flush=True)
    return good


def check_fewer(trainings, options):
    want = trainings.four_workers()
    plan = trainings.plan("nodes.plan", "dropping", "--cluster", f"{WORKERS}x1", "--stages", f"uniform:{WORKERS}")
    dice = random.Random(options.seed)
    key = trainings.at("nodes.key")
    with open(trainings.at("fewer.err"), "wb") as errors:
        process = subprocess.Popen(
            [trainings.pipeshard, "run", plan, "--data", trainings.data, "--steps", str(trainings.steps), "--checkpoint",
             trainings.at("fewer.saved"), "--every", "20", "--restarts", "5", "--log", trainings.at("fewer.log"), "--listen",
             "tcp://127.0.0.1:*", "--key-file", key, "--threads", "1"], stdout=subprocess.DEVNULL, stderr=errors)
        nodes = [subprocess.Popen([trainings.pipeshard, "node", "--key-file", key, "--index", str(i)], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) for i in range(WORKERS)]
    good = True
    left = list(nodes)
    for third in (1, 2):
        step = dice.randrange((3 * third - 2) * trainings.steps // 6, 3 * third * trainings.steps // 6 - 1)
        good &= wait_for(lambda: trainings.steps_done("fewer") >= step, process)
        node = left.pop(dice.randrange(len(left)))
        node.kill()
        node.wait()
        with open(trainings.at("fewer.err"), encoding="utf-8", errors="replace") as errors:
            wait_for(lambda: f"with the plan for {len(left)} devices" in "".join(errors.seek(0) or errors.readlines()), process)
        print(f"node {nodes.index(node)} killed after step {step}", flush=True)
    code = process.wait()
    for node in left:
        node.wait()
    with open(trainings.at("fewer.err"), encoding="utf-8") as errors:
        text = errors.read()
    went_on = [int(number) for number in re.findall(r"with the plan for (\d+) devices", text)]
    losses = trainings.losses_of("fewer")
    good &= code == 0 and went_on == [3, 2] and len(losses) == trainings.steps
    if not good:
        print(f"exit code {code}, went on with {went_on}\n{text[-2000:]}")
    return compare("four, then three, then two workers", losses, want, 1e-4) and good


CHECKS = {
    "device": check_device,
    "double": lambda trainings, options: check_torch(trainings, "float64", options.double_steps, torch.float64, 1e-3),
    "single": lambda trainings, options: check_torch(trainings, "float32", trainings.steps, torch.float32, 1e-2),
    "kills": check_kills,
    "fewer": check_fewer,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeshard")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--double-steps", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--work", help="keep everything here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(options.work or ".", exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        trainings = Trainings(os.path.abspath(options.pipeshard), options.work or temporary, options.steps)
        results = [check(trainings, options) for name, check in CHECKS.items() if re.search(options.only, name)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
