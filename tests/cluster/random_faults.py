#!/usr/bin/env python3
"""Short jobs on two hosts that a cable joins, and on one; in each, something breaks at a random moment: a process is killed, stopped or
frozen, the cable is cut (and mended), a disk is full, a limit is low, strangers send garbage to every port. The job must end in time, with
the right exit code and one line that names the cause, and leave nothing: no process, segment, socket or file.

  tests/cluster/random_faults.py --pipeshard build/dev/tools/pipeshard --rounds 2000 --seed 1 --jobs 2
  tests/cluster/random_faults.py --pipeshard build/dev/tools/pipeshard --seconds 600 --record
  tests/cluster/random_faults.py --summary

Round i draws its fault and moment from the seed and i; `--only I` repeats it. `--record` writes a line per round to a file, and begins behind
the last round of the seed that is there, so that runs add up; `--summary` says what such a file holds. At the end: rounds per fault, median
and worst time from the fault to the message and to the end of the coordinator. Where a process goes on too long, its state is printed, with
stacks if there is gdb. Exit code: 0; 1 when a round failed (each failure is printed with what led to it); 77 when this machine lacks
something. Runs in namespaces of its own; needs root.
"""

import argparse
import collections
import csv
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import random_kills
from random_kills import living, sockets, wait_until, exit_code

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT = 20.0   # seconds from the end of the coordinator until all processes have ended
NODE_TIMEOUT = 10
BEGIN = 60.0   # until workers are there to be hurt
UNHURT = 300.0  # until a job has ended that nobody has hurt
MOST_STEPS, LEAST_STEPS = 2500, 200
JOB_SECONDS = 8.0  # that a job takes where nobody hurts it: longer than any fault comes late; beside other work 2,500 steps take minutes

# fault, share of rounds, exit codes of the coordinator that are right, seconds until it has ended: where the job goes on, those of a
# busy machine
FAULTS = {
    "kill worker": (14, {69}, 13), "kill daemon": (10, {69}, 13), "kill coordinator": (8, {-signal.SIGKILL}, 2),
    "stop worker": (6, {69}, 12), "stop daemon": (6, {69}, 13), "freeze worker": (6, {69}, 30),
    "cut link": (12, {69}, 13), "glitch": (14, {0}, 300), "full disk": (10, {73}, 300), "low limit": (10, {78, 73, 83}, 300),
    "strangers": (10, {0}, 300),
}
COLUMNS = ["when", "version", "seed", "round", "fault", "delay", "seconds", "code", "failed", "message"]
LIMITS = [("-n", "40"), ("-n", "24"), ("-u", None), ("-v", "300000"), ("-f", "8")]


def run(*command, timeout=60, **options):
    return subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=timeout, **options)


def on_host(host, command):
    return ["ip", "netns", "exec", f"host{host}", *command]


def make_hosts():
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "none", "/run/netns")
    for host in (0, 1):
        run("ip", "netns", "add", f"host{host}")
        run(*on_host(host, ["ip", "link", "set", "lo", "up"]))
    run("ip", "link", "add", "cable0", "netns", "host0", "type", "veth", "peer", "name", "cable1", "netns", "host1")
    for host in (0, 1):
        run(*on_host(host, ["ip", "address", "add", f"192.0.2.{host + 1}/24", "dev", f"cable{host}"]))
        run(*on_host(host, ["ip", "link", "set", f"cable{host}", "up"]))
    wait_until(lambda: "LOWER_UP" in subprocess.run(on_host(1, ["ip", "-o", "link", "show", "cable1"]), capture_output=True, text=True,
                                                    check=False).stdout, 5)


def cable(state):
    run(*on_host(1, ["ip", "link", "set", "cable1", state]))


class Freezer:
    """A control group whose processes do not run; v1 or v2, whichever this machine has."""

    def __init__(self, name):
        self.path = None
        for root, kind in (("/sys/fs/cgroup/freezer", "v1"), ("/sys/fs/cgroup", "v2")):
            path = os.path.join(root, name)
            try:
                os.makedirs(path, exist_ok=True)
            except OSError:
                continue
            if os.path.exists(os.path.join(path, "freezer.state" if kind == "v1" else "cgroup.freeze")):
                self.path, self.kind = path, kind
                return

    def freeze(self, pid):
        self.write("cgroup.procs", str(pid))
        self.write(*(("freezer.state", "FROZEN") if self.kind == "v1" else ("cgroup.freeze", "1")))

    def thaw(self):
        if self.path:
            self.write(*(("freezer.state", "THAWED") if self.kind == "v1" else ("cgroup.freeze", "0")))

    def remove(self):
        self.thaw()
        if self.path:
            wait_until(lambda: self.try_remove(), 5)

    def try_remove(self):
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(text)


class Strangers:
    """Threads that connect to every port that somebody listens at, on both hosts, and send what is no message."""

    def __init__(self, seed):
        self.children = [subprocess.Popen(on_host(host, [sys.executable, os.path.abspath(__file__), "--pipeshard", "-", "--strangers",
                                                         str(seed)])) for host in (0, 1)]

    def end(self):
        for child in self.children:
            child.kill()
            child.wait()


def be_strangers(seed):
    """In a host: until killed."""
    dice = random.Random(seed)
    while True:
        ports = set()
        for name in ("tcp", "tcp6"):
            with open(f"/proc/net/{name}", encoding="ascii") as file:
                for line in file.read().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A":
                        ports.add((fields[1].split(":")[0], int(fields[1].split(":")[1], 16)))
        for address, port in ports:
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1]) if len(address) == 8 else "127.0.0.1"
            try:
                with socket.create_connection((host, port), 1) as peer:
                    peer.settimeout(0.2)
                    greeting = b"\xff" + bytes(8) + b"\x7f\x03" + dice.choice([b"NULL", b"CURVE", b"PLAIN"]).ljust(20, b"\0") + bytes(32)
                    peer.send(dice.choice([b"", b"GET / HTTP/1.0\r\n\r\n", dice.randbytes(dice.randrange(2000)), greeting,
                                           greeting + dice.randbytes(300)]))
                    peer.recv(100)
            except OSError:
                pass
        time.sleep(0.05)


class Job(random_kills.Job):
    def __init__(self, options, folder, fault, dice):
        self.folder, self.pipeshard = folder, options.pipeshard
        self.temporary = os.path.join(folder, "tmp")
        os.makedirs(self.temporary)
        self.key = os.path.join(folder, "job.key")
        arguments = [self.pipeshard, "run", options.plan, "--steps", str(options.steps), "--listen", "tcp://192.0.2.1:*", "--key-file", self.key,
                     "--node-timeout", str(NODE_TIMEOUT)]
        if fault == "glitch":
            arguments += ["--patience", "20"]
        if fault == "full disk":
            self.disk = os.path.join(folder, "disk")
            os.makedirs(self.disk)
            run("mount", "-t", "tmpfs", "-o", f"size={dice.choice(['64k', '1m', '2m'])}", "none", self.disk)
            arguments += dice.choice([["--checkpoint", os.path.join(self.disk, "saved"), "--every", "40"],
                                      ["--dump", os.path.join(self.disk, "dump")],
                                      ["--trace", os.path.join(self.disk, "trace.json")]])
        node = [self.pipeshard, "node", "--key-file", self.key, "--wait", "10"]
        low = self.low(dice) if fault == "low limit" else None
        self.started = time.monotonic()
        self.coordinator = self.start("coordinator", 0, arguments, None)
        self.daemons = [self.start(f"node{i}", i, [*node, "--index", str(i)], low if i == 1 else None) for i in (0, 1)]

    @staticmethod
    def low(dice):
        flag, value = dice.choice([limit for limit in LIMITS if limit[1]])
        return f"ulimit {flag} {value}"

    def start(self, name, host, command, limit):
        if limit:
            command = ["sh", "-c", f'{limit} && exec "$@"', "sh", *command]
        with open(os.path.join(self.folder, name + ".out"), "wb") as out, open(os.path.join(self.folder, name + ".err"), "wb") as err:
            return subprocess.Popen(on_host(host, command), cwd=self.temporary, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    env={**os.environ, "TMPDIR": self.temporary}, start_new_session=True)

    def causes(self):
        return [line for line in self.read("coordinator.err").splitlines() if line.startswith("pipeshard: ")]

    def workers(self):
        return sorted(pid for pid in living() if " worker " in " ".join(random_kills.arguments_of(pid)))

    def destroy(self):
        super().destroy()
        if hasattr(self, "disk"):
            subprocess.run(["umount", "-l", self.disk], check=False)


class Round:
    def __init__(self, options, number):
        self.dice = random.Random(f"{options.seed}/{number}")
        self.fault = self.dice.choices(list(FAULTS), [share for share, _, _ in FAULTS.values()])[0]
        self.delay = self.dice.uniform(0.2, 2.2)
        self.options, self.number = options, number
        self.faults = []
        self.seconds = None  # from the fault to the end of the coordinator
        self.told = None  # to its message
        self.states = []  # of all processes, where somebody went on too long
        self.pid = None
        self.code = None  # the coordinator's

    def strike(self, job):
        """False where nobody was there."""
        if self.fault in ("full disk", "low limit"):
            self.struck = job.started
            return True
        if self.fault == "strangers":
            self.strangers = Strangers(self.number)
            self.struck = time.monotonic()
            return True
        time.sleep(max(0.0, job.started + self.delay - time.monotonic()))
        if self.fault.endswith(" worker"):  # which may be later on a busy machine
            wait_until(lambda: job.workers() or job.coordinator.poll() is not None, BEGIN)
        self.struck = time.monotonic()
        victims = {"worker": job.workers, "daemon": lambda: [self.dice.choice(job.daemons).pid], "coordinator": lambda: [job.coordinator.pid]}
        verb, victim = self.fault.split() if " " in self.fault else (self.fault, "")
        if verb in ("kill", "stop", "freeze"):
            found = victims[victim]()
            if not found or job.coordinator.poll() is not None:
                return False
            self.pid = self.dice.choice(found)
            if verb == "freeze":
                self.freezer.freeze(self.pid)
            else:
                os.kill(self.pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        else:
            if job.coordinator.poll() is not None:
                return False
            cable("down")
            if self.fault == "glitch":
                time.sleep(self.dice.uniform(0.1, 6.5))
                cable("up")
        return True

    def run(self):
        folder = tempfile.mkdtemp(prefix="job.")
        self.freezer = Freezer(f"pipeshard-{os.getpid()}-{self.number}") if self.fault.startswith("freeze") else None
        self.strangers = None
        if self.freezer and not self.freezer.path:
            self.fault, self.freezer = "stop worker", None
        job = Job(self.options, folder, self.fault, self.dice)
        try:
            struck = self.strike(job)
            _, codes, limit = FAULTS[self.fault]
            if not wait_until(lambda: self.has_ended(job), limit + 30 if struck else UNHURT):
                self.goes_on("the coordinator goes on")
            self.seconds = time.monotonic() - self.struck
            self.code = job.coordinator.returncode
            if struck:
                self.check(job, codes, limit)
            self.clean(job, struck)
        finally:
            if self.strangers:
                self.strangers.end()
            if self.fault in ("cut link", "glitch"):
                cable("up")
            if self.freezer:
                self.freezer.remove()
            if self.faults:
                self.report(job)
            job.destroy()
            shutil.rmtree(folder, ignore_errors=True)
        return struck

    def has_ended(self, job):
        if self.told is None and job.causes():
            self.told = time.monotonic() - self.struck
        return job.coordinator.poll() is not None

    def goes_on(self, what):
        self.faults.append(what)
        self.states = self.states or random_kills.states()

    def check(self, job, codes, limit):
        code = job.coordinator.returncode
        late = code == 0 and random_kills.FINISHED.search(job.read("coordinator.out"))  # it was done already
        if self.fault == "low limit" and code == 69:  # a node that could not begin says why itself
            code = job.daemons[1].wait(10)
        if code not in codes and not late:
            self.faults.append(f"exit code of the coordinator: {code}, not {codes}")
        if any("not all nodes have joined" in line for line in job.causes()):  # it was hurt before
            limit += NODE_TIMEOUT
        if self.seconds > limit and not late:
            self.faults.append(f"it ended {self.seconds:.1f} s after the fault, not within {limit}")
        causes = job.causes()
        if causes and self.told is None:  # between two looks
            self.told = self.seconds
        wanted = 0 if code in (0, -signal.SIGKILL) else 1
        if len(causes) != wanted:
            self.faults.append(f"{len(causes)} lines of cause")
        if causes and self.pid and self.fault.endswith("worker") and f"pid {self.pid})" not in causes[0]:
            self.faults.append("the cause names another process")
        if causes and self.fault == "cut link" and "node 1" not in causes[0]:
            self.faults.append("the cause does not name node 1")
        if any("internal error" in line for line in causes):
            self.faults.append("a bug")

    def clean(self, job, struck):
        if self.strangers:
            self.strangers.end()
        if self.freezer:
            self.freezer.thaw()
        if self.fault == "stop daemon" and struck and self.pid:
            try:
                os.kill(self.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        if not wait_until(job.all_ended, LIMIT):
            left = [" ".join(process.args[4:6]) for process in job.processes() if process.poll() is None]
            self.goes_on(f"still running: {left}")
        if not wait_until(lambda: not living(), 5):
            self.goes_on("left: " + "; ".join(" ".join(random_kills.arguments_of(pid))[:150] for pid in living()))
        if os.listdir("/dev/shm"):
            self.faults.append(f"left in /dev/shm: {os.listdir('/dev/shm')}")
        killed = job.coordinator.returncode is not None and job.coordinator.returncode < 0
        if not killed and (os.listdir(job.temporary) or os.path.exists(job.key)):
            self.faults.append(f"left: {os.listdir(job.temporary)}, key file {os.path.exists(job.key)}")

    def report(self, job):
        print(f"FAILED round {self.number}: {self.fault} (pid {self.pid}) after {self.delay * 1e3:.0f} ms")
        for fault in self.faults:
            print(f"    {fault}")
        for process, name in zip(job.processes(), ["coordinator", "node0", "node1"]):
            print(f"    {name} (pid {process.pid}) ended with {process.returncode}")
            for line in job.read(name + ".err").splitlines()[-10:]:
                print(f"      | {line}")
        for line in self.states:
            print(f"    {line}")
        sys.stdout.flush()


def steps_of_a_job(options):
    """As many as this machine does in JOB_SECONDS, now."""
    folder = tempfile.mkdtemp(prefix="job.")
    options.steps = LEAST_STEPS
    job = Job(options, folder, "none", random.Random(0))
    try:
        if not wait_until(job.all_ended, UNHURT) or job.coordinator.returncode != 0:
            sys.exit("a job that nobody hurts does not end well:\n" + "\n".join([job.read("coordinator.err"), *random_kills.states()]))
        seconds = time.monotonic() - job.started
    finally:
        job.destroy()
        shutil.rmtree(folder, ignore_errors=True)
    return min(MOST_STEPS, max(LEAST_STEPS, round(LEAST_STEPS * JOB_SECONDS / seconds)))


class Record:
    """A file with a line for every round that counted; `path` None: none."""

    def __init__(self, path):
        self.path = path

    def rows(self):
        if not self.path or not os.path.exists(self.path):
            return []
        with open(self.path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter="\t"))

    def begin(self):
        if self.path and not os.path.exists(self.path):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self.append(COLUMNS)

    def append(self, row):
        """Whole lines, from several processes."""
        line = "\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in row) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def add(self, options, current, code):
        if self.path:
            self.append([time.strftime("%Y-%m-%dT%H:%M:%S"), options.version, options.seed, current.number, current.fault,
                         f"{current.delay:.2f}", f"{current.seconds:.2f}", code, "; ".join(current.faults),
                         "" if current.told is None else f"{current.told:.2f}"])

    def next_round(self, seed):
        """Behind all rounds of the seed."""
        return 1 + max((int(row["round"]) for row in self.rows() if row["seed"] == str(seed)), default=-1)


class Times:
    """Of rounds, by their fault: seconds to the message (None: there was none), and to the end."""

    def __init__(self):
        self.rounds, self.failed = collections.defaultdict(list), collections.Counter()

    def add(self, fault, message, end, has_failed):
        self.rounds[fault].append((message, end))
        self.failed[fault] += bool(has_failed)

    def print(self):
        for fault, times in sorted(self.rounds.items()):
            messages = [message for message, _ in times if message is not None]
            wrong = f", {self.failed[fault]} failed" if self.failed[fault] else ""
            print(f"{fault:17} {len(times):5} rounds{self.span('to the message', messages)}"
                  f"{self.span('to the end', [end for _, end in times])}{wrong}")

    @staticmethod
    def span(what, seconds):
        return f", {what}: median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s" if seconds else ""


def summary(path):
    rows = Record(path).rows()
    times = Times()
    for row in rows:
        times.add(row["fault"], float(row["message"]) if row.get("message") else None, float(row["seconds"]), row["failed"])
    times.print()
    for row in rows:
        if row["failed"]:
            print(f"failed: seed {row['seed']}, round {row['round']}, {row['fault']}, {row['version']}: {row['failed']}")
    print(f"{len(rows)} rounds, {sum(times.failed.values())} failed, in {path}")


def run_sequence(options):
    make_hosts()
    options.steps = steps_of_a_job(options)
    times = Times()
    failures = counted = 0
    record = Record(options.record)
    end = time.monotonic() + options.seconds if options.seconds else None
    number = options.first + options.sequence if options.only is None else options.only
    while counted < -(-options.rounds // options.jobs) and (end is None or time.monotonic() < end):
        current = Round(options, number)
        struck = current.run()
        counted += struck
        failures += bool(current.faults)
        if not struck:
            current.fault = "nobody there"  # for the fault; what is wrong with such a job is not its doing
        if struck or current.faults:
            times.add(current.fault, current.told, current.seconds, current.faults)
            record.add(options, current, current.code)
        if options.verbose:
            print(f"round {number}: {current.fault} after {current.delay:.2f} s: {current.seconds:.2f} s", flush=True)
        number += options.jobs
        if options.only is not None:
            break
    times.print()
    print(f"{counted} rounds, {failures} failed", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("PIPESHARD_RANDOM_FAULTS", "12")))
    parser.add_argument("--seconds", type=float, help="no new round after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--verbose", action="store_true")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = os.path.join(cache, "pipeshard/random_faults.tsv")
    parser.add_argument("--record", nargs="?", const=usual, metavar="FILE", help=f"without FILE: {usual}")
    parser.add_argument("--summary", nargs="?", const=usual, metavar="FILE")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--version", help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    parser.add_argument("--sequence", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--strangers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.strangers is not None:
        be_strangers(options.strangers)
    if options.summary:
        return summary(options.summary)
    if not options.pipeshard:
        parser.error("--pipeshard is missing")
    options.pipeshard = os.path.abspath(options.pipeshard)
    if options.sequence is not None:
        sys.exit(1 if run_sequence(options) else 0)
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            random_kills.skip(f"there is no {program} (Debian packages: util-linux iproute2 mount)")
    if os.getuid() != 0 or subprocess.run([*random_kills.namespaces(), "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        random_kills.skip("hosts that are namespaces can be made by root alone")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="random_faults.") as folder:
        plan = os.path.join(folder, "plan")
        run(options.pipeshard, "plan", "examples/mlp.onnx", "--cluster", "2x2", "--stages", "uniform:4", "--microbatches", "4", "-o", plan, cwd=ROOT)
        prepare = 'ip link set lo up && mount -t tmpfs none /dev/shm && ulimit -c 0 && "$@"; exit $?'
        count = options.jobs if options.only is None else 1
        record = Record(options.record and os.path.abspath(options.record))
        record.begin()
        version = subprocess.run([options.pipeshard, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        more = ["--first", str(record.next_round(options.seed)), "--version", version]
        if record.path:
            more += ["--record", record.path]
        children = [subprocess.Popen([*random_kills.namespaces(), "sh", "-c", prepare, "sh", sys.executable, os.path.abspath(__file__),
                                      *sys.argv[1:], *more, "--plan", plan, "--sequence", str(i)], env={**os.environ, "TMPDIR": folder})
                    for i in range(count)]
        codes = [child.wait() for child in children]
    print(f"{'FAILED' if any(codes) else 'passed'} in {time.monotonic() - start:.0f} s, seed {options.seed}", flush=True)
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
