#!/usr/bin/env python3
"""Short jobs; in each, one process is killed, stopped or signalled at a random moment. Whatever it was, the job must end in time, with
the right exit code and one line that names the cause, and leave nothing: no process, segment, socket or file.

  tests/cluster/random_kills.py --pipeshard build/dev/tools/pipeshard --rounds 1000 --seed 1 --jobs 2

Each of the `--jobs` sequences runs in process, network and mount namespaces of its own (with its own /dev/shm), so that whatever is in
there after a round was left by that round. Round i draws its job, victim, signal and moment from the seed and i; `--only I` repeats a
round. Rounds in which the victim was gone already do not count. Exit code: 0; 1 when a round failed (each failure is printed with what
led to it); 77 when this machine lacks something.
"""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
JOB_LIMIT = 15.0  # seconds from the fault until all processes have ended
WORKER_STOP_LIMIT = 10.0
WORKER_KILL_LIMIT = 5.0
NODE_WAIT = "6"  # seconds that a coordinator or daemon waits for the others
INFORMATION = re.compile(
    r"^(.* \.\.\.|waiting for \d+ nodes?; start on each host: .*|node \d+ joined: host \S+, pid \d+"
    r"|control at \S+: (\d+ messages? dropped)?( and )?(\d+ connections? refused)? so far.*"  # a worker that died in its handshake counts
    r"|(pipeshard node: |node \d+ \(.*\): )tensors at \S+: \d+ connections refused so far.*"  # so does a daemon
    r"|pipeshard node: (joined the coordinator at .*|waiting for .*|started ranks? [\d, ]+|the job is done|the job is over: .*))$")
BACKTRACE = re.compile(r"^(.*: ended by SIG(SEGV|ABRT); backtrace:|\S+(\(\S*\))?\[0x[0-9a-f]+\])$")  # a crashed worker's own last words
FINISHED = re.compile(r"^(PASS: .*|\d+ steps on \d+ workers; loss .*)$", re.MULTILINE)

# name, share of rounds, arguments, number of node daemons. A job takes about a second.
JOBS = [
    ("run", 3, ["run", "{mlp}", "--steps", "1500"], 0),
    ("run gpt2", 2, ["run", "{gpt2}", "--steps", "60"], 0),
    ("validate", 2, ["validate", "{gpt2}", "--steps", "3"], 0),
    ("run on nodes", 3, ["run", "{gpt2}", "--steps", "60"], 2),
    ("validate on nodes", 1, ["validate", "{mlp}", "--steps", "3"], 2),
]
# victim, signal, share of rounds
FAULTS = [
    ("worker", signal.SIGKILL, 30), ("worker", signal.SIGSEGV, 4), ("worker", signal.SIGABRT, 4), ("worker", signal.SIGSTOP, 2),
    ("coordinator", signal.SIGKILL, 14), ("coordinator", signal.SIGTERM, 8), ("coordinator", signal.SIGINT, 8),
    ("coordinator", signal.SIGHUP, 2), ("coordinator", signal.SIGSTOP, 2),
    ("daemon", signal.SIGKILL, 18), ("daemon", signal.SIGTERM, 6), ("daemon", signal.SIGINT, 4), ("daemon", signal.SIGSTOP, 2),
]


def arguments_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def living():
    """Processes that are not zombies, other than this one and process 1 of the namespace."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X"):
                    found.append(int(name))
        except OSError:
            pass  # it has just ended
    return found


def states():
    """Lines for people about every process that goes on: what it is, where its threads wait, and, where there is gdb, its stacks."""
    lines = []
    for pid in living():
        lines.append(f"process {pid}: {' '.join(arguments_of(pid))[:200]}")
        try:
            for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
                lines.append(f"  thread {thread}: {state_of(f'/proc/{pid}/task/{thread}')}")
        except OSError:
            continue  # it has just ended
        if shutil.which("gdb") and "pipeshard" in os.path.basename((arguments_of(pid) or [""])[0]):
            try:
                found = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"], capture_output=True, text=True,
                                       timeout=60, check=False, stdin=subprocess.DEVNULL)
                lines += ["  " + line for line in found.stdout.splitlines() if re.match(r"Thread \d|#\d", line)]
            except subprocess.TimeoutExpired:
                lines.append("  gdb got no answer")  # it is frozen, or inside the kernel
    return lines


def state_of(folder):
    """Of a thread: its name, the state, the function of the kernel that it is in, and the system call."""
    words = []
    for name in ("comm", "stat", "wchan", "syscall"):
        try:
            with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
                text = file.read().strip()
        except OSError:
            continue
        words.append(text.rsplit(")", 1)[1].split()[0] if name == "stat" else text.split(" ")[0] if name == "syscall" else text)
    return " ".join(words)


def sockets():
    """TCP sockets other than those that only wait for late packets, and named unix sockets."""
    found = []
    for name in ("tcp", "tcp6", "unix"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            continue
        if name == "unix":
            found += [fields[7] for fields in (line.split() for line in lines) if len(fields) > 7]
        else:
            found += [line for line in lines if line.split()[3] != "06"]  # TIME_WAIT
    return found


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def exit_code(process):
    return None if process.returncode is None else process.returncode if process.returncode >= 0 else 128 - process.returncode


class Job:
    """One job in a folder of its own, which is its TMPDIR too."""

    def __init__(self, pipeshard, plans, job):
        self.name, _, arguments, nodes = job
        self.folder = tempfile.mkdtemp(prefix="job.")
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.temporary)
        self.key = os.path.join(self.folder, "job.key")
        self.pipeshard = pipeshard
        arguments = [text.format(**plans) for text in arguments]
        if nodes:
            arguments += ["--listen", "tcp://127.0.0.1:*", "--key-file", self.key, "--node-timeout", NODE_WAIT]
        self.started = time.monotonic()
        self.coordinator = self.start("coordinator", arguments)
        self.daemons = [self.start(f"node{i}", ["node", "--key-file", self.key, "--index", str(i), "--wait", NODE_WAIT])
                        for i in range(nodes)]

    def start(self, name, arguments):
        with open(os.path.join(self.folder, name + ".out"), "wb") as out, open(os.path.join(self.folder, name + ".err"), "wb") as err:
            return subprocess.Popen([self.pipeshard, *arguments], cwd=self.temporary, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    env={**os.environ, "TMPDIR": self.temporary}, start_new_session=True)

    def processes(self):
        return [self.coordinator, *self.daemons]

    def all_ended(self):
        return all([process.poll() is not None for process in self.processes()])

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def workers(self):
        """{pid: rank}; rank None: forked, but not a worker yet."""
        own = {process.pid for process in self.processes()}
        found = {}
        for pid in living():
            if pid in own:
                continue
            text = " ".join(arguments_of(pid))
            rank = re.search(r"--rank (\d+)", text) if " worker " in text else None
            found[pid] = int(rank.group(1)) if rank else None
        return found

    def finished(self):
        return FINISHED.search(self.read("coordinator.out")) is not None

    def destroy(self):
        for pid in living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.processes():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Round:
    """One fault in one job, and what must be seen of it."""

    def __init__(self, job, dice, typical_seconds, slack):
        self.job = job
        self.slack = slack
        self.faults = []  # what is wrong
        self.delay = dice.uniform(0, 1.05 * typical_seconds)
        candidates = [fault for fault in FAULTS if fault[0] != "daemon" or job.daemons]
        self.victim, self.signal, _ = dice.choices(candidates, [share for _, _, share in candidates])[0]
        self.pick = dice.random()
        self.pid = self.rank = self.index = None
        self.in_time = True
        self.seconds = 0.0

    def wrong(self, what):
        self.faults.append(what)

    def describe(self):
        return (f"{self.job.name}: {signal.Signals(self.signal).name} to {self.victim} "
                f"(pid {self.pid}, rank {self.rank}, node {self.index}) after {self.delay * 1e3:.0f} ms")

    def strike(self):
        """Sends the signal at the moment drawn; False when there is no such process then."""
        time.sleep(max(0.0, self.job.started + self.delay - time.monotonic()))
        if self.victim == "coordinator":
            process = self.job.coordinator
        elif self.victim == "daemon":
            self.index = int(self.pick * len(self.job.daemons))
            process = self.job.daemons[self.index]
        else:
            workers = sorted(self.job.workers().items())
            if not workers:
                return False
            self.pid, self.rank = workers[int(self.pick * len(workers))]
            process = None
        if process is not None:
            if process.poll() is not None:
                return False
            self.pid = process.pid
        try:
            os.kill(self.pid, self.signal)
        except ProcessLookupError:
            return False
        return True

    def run(self):
        struck = self.strike()
        start = time.monotonic()
        if struck and self.signal == signal.SIGSTOP and self.victim != "worker":
            self.resume_later(start)
        if not wait_until(self.job.all_ended, JOB_LIMIT + self.slack - (time.monotonic() - start)):
            left = [process.args[1] for process in self.job.processes() if process.poll() is None]
            self.wrong(f"still running {JOB_LIMIT + self.slack:.0f} s later: {', '.join(left)}")
            return struck
        self.seconds = time.monotonic() - start
        if struck:
            self.check_codes()
        elif self.code() != 0:
            self.wrong(f"exit code {self.code()} although nobody was hurt")
        self.check_leftovers()
        return struck

    def seconds_of_job(self):
        return self.seconds + self.delay

    def resume_later(self, start):
        """A coordinator goes on before it is missed; a daemon when the job has ended without it, and without the workers it had."""
        if self.victim == "coordinator":
            time.sleep(0.5)
        elif wait_until(lambda: self.job.coordinator.poll() is not None, JOB_LIMIT + self.slack - (time.monotonic() - start)):
            if not wait_until(lambda: not self.job.workers(), 5 + self.slack):
                self.wrong("workers of a stopped daemon go on")
        os.kill(self.pid, signal.SIGCONT)

    def code(self):
        return exit_code(self.job.coordinator)

    def causes(self, name):
        return [line for line in self.job.read(name).splitlines() if not INFORMATION.match(line)]

    def expect(self, what, got, *wanted):
        if got not in wanted:
            self.wrong(f"exit code of the {what}: {got}, not {' or '.join(map(str, wanted))}")

    def check_codes(self):
        if self.code() == 0:
            self.check_success()
        elif self.victim == "coordinator":
            self.check_coordinator_hurt()
        else:
            self.expect("coordinator", self.code(), 69)
            self.check_cause()
            for i, daemon in enumerate(self.job.daemons):
                own = [128 + self.signal] if i == self.index and self.signal != signal.SIGSTOP else [69]
                self.expect(f"daemon {i}", exit_code(daemon), *own, *self.released(i))

    def released(self, node):
        """The nodes go before the coordinator: it reports what they did, and validate runs the step on one device last."""
        may_be = self.victim == "coordinator" or self.job.name.startswith("validate")
        return [0] if may_be and self.job.read(f"node{node}.err").endswith("pipeshard node: the job is done\n") else []

    def check_success(self):
        """The fault came too late to matter, or was only a pause of the coordinator."""
        if not self.job.finished():
            self.wrong("exit code 0, but the output is not complete")
        if self.seconds > WORKER_KILL_LIMIT + self.slack and self.signal != signal.SIGSTOP:
            self.wrong(f"exit code 0, but {self.seconds:.1f} s after the fault: the job has not noticed it")
        if self.causes("coordinator.err"):
            self.wrong("exit code 0, but a complaint")
        for i, daemon in enumerate(self.job.daemons):
            allowed = [0] + ([128 + self.signal, 69] if i == self.index else [])
            self.expect(f"daemon {i}", exit_code(daemon), *allowed)

    def check_coordinator_hurt(self):
        self.expect("coordinator", self.code(), 128 + self.signal)
        causes = self.causes("coordinator.err")
        raw = self.job.coordinator.returncode < 0  # the signal itself ended it: SIGKILL, or before it was handled
        if len(causes) > (0 if self.signal == signal.SIGKILL else 1) or (not raw and len(causes) != 1):
            self.wrong(f"{len(causes)} lines of cause")
        if causes and f"stopped by {signal.Signals(self.signal).name}" not in causes[0]:
            self.wrong("the cause is not the signal")
        # 128 + the signal: told by the coordinator that it was stopped.
        for i, daemon in enumerate(self.job.daemons):
            self.expect(f"daemon {i}", exit_code(daemon), 69, 128 + self.signal, *self.released(i))

    def check_cause(self):
        causes = self.causes("coordinator.err")
        if self.victim == "worker" and self.signal in (signal.SIGSEGV, signal.SIGABRT):
            causes = [line for line in causes if not BACKTRACE.match(line)]
        if len(causes) != 1:
            self.wrong(f"{len(causes)} lines of cause instead of one")
            return
        cause = causes[0]
        if self.index is not None and "not all nodes have joined" in cause:
            if not re.search(rf"missing: node ([\d, ]*\b)?{self.index}\b", cause) and "has not started" not in cause:
                self.wrong("the daemon is not among the missing")
            return
        if f"pid {self.pid})" not in cause:
            self.wrong("the cause names another process")
        name = f"rank {self.rank} " if self.rank is not None else f"node {self.index} " if self.index is not None else ""
        if name not in cause:
            self.wrong(f"the cause does not name {name}")
        if self.victim == "worker" and self.signal == signal.SIGSTOP and self.seconds > WORKER_STOP_LIMIT + self.slack:
            self.wrong(f"a stopped worker was noticed after {self.seconds:.1f} s")
        if self.victim == "worker" and self.signal != signal.SIGSTOP and self.seconds > WORKER_KILL_LIMIT + self.slack:
            self.wrong(f"a killed worker was noticed after {self.seconds:.1f} s")

    def check_leftovers(self):
        if not wait_until(lambda: not living(), 5 + self.slack):
            left = [f"{pid}: {' '.join(arguments_of(pid))[:150]}" for pid in living()]
            self.wrong("processes are left: " + "; ".join(left))
        if os.listdir("/dev/shm"):
            self.wrong(f"left in /dev/shm: {os.listdir('/dev/shm')}")
            for name in os.listdir("/dev/shm"):
                os.unlink(os.path.join("/dev/shm", name))
        if not wait_until(lambda: not sockets(), 5 + self.slack):
            self.wrong(f"sockets are left: {sockets()}")
        if self.job.coordinator.returncode != -signal.SIGKILL:  # then nobody could remove them
            if os.listdir(self.job.temporary):
                self.wrong(f"left in the temporary folder: {os.listdir(self.job.temporary)}")
            if os.path.exists(self.job.key):
                self.wrong("the key file is left")

    def report(self):
        print(f"FAILED {self.describe()}, {self.seconds:.1f} s until all had ended")
        for fault in self.faults:
            print(f"    {fault}")
        for process, name in zip(self.job.processes(), ["coordinator", "node0", "node1"]):
            print(f"    {name} (pid {process.pid}) ended with {process.returncode}")
            for line in self.job.read(name + ".err").splitlines()[-12:]:
                print(f"      | {line}")
        sys.stdout.flush()


def run_sequence(options, sequence):
    plans = {name: os.path.join(options.plans, name) for name in ("mlp", "gpt2")}
    typical = {}
    outcomes = collections.Counter()
    failures = 0
    quota = len(range(sequence, options.rounds, options.jobs)) if options.only is None else 1
    i = sequence if options.only is None else options.only
    while quota > 0:
        dice = random.Random(f"{options.seed}/{i}")
        jobs = [job for job in JOBS if not (options.no_nodes and job[3])]
        job = dice.choices(jobs, [share for _, share, _, _ in jobs])[0]
        if job[0] not in typical:
            typical[job[0]] = measure(options.pipeshard, plans, job)
        current = Round(Job(options.pipeshard, plans, job), dice, typical[job[0]], options.slack)
        struck = current.run()
        quota -= struck or options.only is not None
        if not struck:
            typical[job[0]] = min(typical[job[0]], current.seconds_of_job())
        if current.faults:
            failures += 1
            print(f"round {i}: ", end="")
            current.report()
        elif options.verbose:
            print(f"round {i}: {current.describe()}: {current.code()} after {current.seconds:.2f} s", flush=True)
        code = current.code()
        outcomes[f"{current.victim} {signal.Signals(current.signal).name}" if struck else "nobody was there"] += 1
        outcomes[f"  exit code {code}"] += 1
        current.job.destroy()
        i += options.jobs
    print("; ".join(f"{name}: {count}" for name, count in sorted(outcomes.items())))
    return failures


def measure(pipeshard, plans, job):
    """Seconds of an undisturbed job, which must be a good one."""
    undisturbed = Job(pipeshard, plans, job)
    ended = wait_until(undisturbed.all_ended, 60)
    seconds = time.monotonic() - undisturbed.started
    codes = [exit_code(process) for process in undisturbed.processes()]
    if not ended or any(codes) or not undisturbed.finished():
        print(undisturbed.read("coordinator.err"))
        sys.exit(f"an undisturbed job ({job[0]}) ended with {codes}")
    undisturbed.destroy()
    return seconds


def make_plans(pipeshard, folder):
    for model in ("mlp", "gpt2"):
        subprocess.run([pipeshard, "plan", f"examples/{model}.onnx", "--cluster", "2x2", "--stages", "uniform:4", "--microbatches", "4",
                        "-o", os.path.join(folder, model)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def namespaces():
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net"]
    return command if os.getuid() == 0 else command + ["--user", "--map-root-user"]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("PIPESHARD_RANDOM_KILLS", "30")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--slack", type=float, default=0.0, help="seconds added to all limits, for a machine that has other work, too")
    parser.add_argument("--no-nodes", action="store_true", help="only jobs on this machine, without node daemons")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--plans", help=argparse.SUPPRESS)
    parser.add_argument("--sequence", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.pipeshard = os.path.abspath(options.pipeshard)
    if options.sequence is not None:
        sys.exit(1 if run_sequence(options, options.sequence) else 0)
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            skip(f"there is no {program} (Debian packages: util-linux iproute2 mount)")
    if subprocess.run([*namespaces(), "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        skip("no process, network and mount namespaces can be made here")
    print(f"{options.rounds} rounds, seed {options.seed}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="random_kills.") as folder:
        make_plans(options.pipeshard, folder)
        prepare = 'ip link set lo up && mount -t tmpfs none /dev/shm && ulimit -c 0 && "$@"; exit $?'
        arguments = [text for text in sys.argv[1:]] + ["--plans", folder]
        count = options.jobs if options.only is None else 1
        children = [subprocess.Popen([*namespaces(), "sh", "-c", prepare, "sh", sys.executable, os.path.abspath(__file__), *arguments,
                                      "--sequence", str(i)], env={**os.environ, "TMPDIR": folder}) for i in range(count)]
        codes = [child.wait() for child in children]
    print(f"{'FAILED' if any(codes) else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
