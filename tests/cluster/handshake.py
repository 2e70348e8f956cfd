#!/usr/bin/env python3
"""The start of jobs of many ranks: a real coordinator (`pipeshard run --listen`), and processes that pose as its nodes and their workers.
These speak control and nothing else: they join, say that they have loaded, do steps that compute nothing, and end when they are told to.
Every node and rank has a connection of its own, with keys.

  tests/cluster/handshake.py --pipeshard build/dev/tools/pipeshard --ranks 64,256,1024 --limit 5

Prints for each job the seconds from the first moment at which nodes can join until all have joined, were told to start, have registered their
ranks, and were told to make the first step (which is when all have loaded), until the end, and seconds of processor: of the coordinator in all, and of
those who pose, which on a cluster is other machines' work.
Exit code: 0; 1 when a job failed, or was not loaded within the limit; 77 without the shared libraries of ZeroMQ and xxHash.
"""

import argparse
import ctypes
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
VERSION = 2  # of control
FIRST_NODE = 1_000_000  # control ranks of nodes begin here
BEAT = 0.5
MEMORY = {"parameters": 0, "states": 0, "gradients": 0, "activations": 0, "workspace": 0, "padding": 0}


class Zmq:
    """The few calls of libzmq that a client needs."""

    DEALER, ROUTING_ID, LINGER, PUBLIC, SECRET, SERVER, SNDHWM = 5, 5, 17, 48, 49, 50, 23
    DONTWAIT, POLLIN, MAX_SOCKETS = 1, 1, 2

    class Item(ctypes.Structure):
        _fields_ = [("socket", ctypes.c_void_p), ("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

    def __init__(self):
        self.lib = ctypes.CDLL("libzmq.so.5", use_errno=True)
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.zmq_ctx_new())
        self.lib.zmq_ctx_set(self.context, self.MAX_SOCKETS, 60_000)
        self.buffer = ctypes.create_string_buffer(1 << 21)

    def pair(self):
        public, secret = ctypes.create_string_buffer(41), ctypes.create_string_buffer(41)
        self.lib.zmq_curve_keypair(public, secret)
        return public.value.decode(), secret.value.decode()

    def connect(self, endpoint, identity, server, public, secret):
        socket = ctypes.c_void_p(self.lib.zmq_socket(self.context, self.DEALER))
        linger = ctypes.c_int(1000)
        self.lib.zmq_setsockopt(socket, self.LINGER, ctypes.byref(linger), ctypes.sizeof(linger))
        for option, text in ((self.ROUTING_ID, identity), (self.SERVER, server), (self.PUBLIC, public), (self.SECRET, secret)):
            raw = text.encode()
            if self.lib.zmq_setsockopt(socket, option, raw, ctypes.c_size_t(len(raw))) != 0:
                raise OSError(f"libzmq refuses option {option}")
        if self.lib.zmq_connect(socket, endpoint.encode()) != 0:
            raise OSError(f"cannot connect to {endpoint}")
        return socket

    def send(self, socket, text):
        self.lib.zmq_send(socket, text, ctypes.c_size_t(len(text)), 0)

    def receive(self, socket):
        size = self.lib.zmq_recv(socket, self.buffer, ctypes.c_size_t(len(self.buffer)), self.DONTWAIT)
        return None if size < 0 else self.buffer.raw[:size]

    def poll(self, sockets, milliseconds):
        items = (self.Item * len(sockets))(*[(socket, 0, self.POLLIN, 0) for socket in sockets])
        self.lib.zmq_poll(items, len(sockets), ctypes.c_long(milliseconds))
        return [i for i, item in enumerate(items) if item.revents]


class Client:
    """One registered rank, or node: numbers its messages, and beats."""

    def __init__(self, poser, rank, keys, body):
        self.poser, self.rank, self.sequence = poser, rank, 0
        ticket = poser.ticket
        self.socket = poser.zmq.connect(ticket["endpoint"], f"posed{rank}-{os.urandom(6).hex()}", ticket["server_public"], *keys)
        self.beaten = time.monotonic()
        self.send("REGISTER", body)

    def send(self, kind, body=None):
        self.sequence += 1
        ticket = self.poser.ticket
        self.poser.zmq.send(self.socket, json.dumps({"version": VERSION, "job": ticket["job"], "generation": ticket["generation"],
                                                     "rank": self.rank, "sequence": self.sequence, "type": kind, "body": body or {}}).encode())

    def beat(self):
        if time.monotonic() - self.beaten < BEAT:
            return
        self.beaten = time.monotonic()
        self.send(*self.alive())


class Rank(Client):
    def __init__(self, poser, rank, node, attempt):
        super().__init__(poser, rank, node.worker_keys, {"pid": 1_000_000 + rank, "build": poser.build, "attempt": attempt})
        self.node, self.registered, self.loaded = node, False, False

    def alive(self):
        return "heartbeat", {"where": "posing", "progress": 1, "computing": False, "waiting": False, "idle": True}

    def load(self):
        """When its node is connected to the others, as a worker does whose tensors go there."""
        if self.registered and self.node.connected and not self.loaded:
            self.loaded = True
            self.send("loaded", {"programs": self.poser.digests[self.rank], "arena_bytes": 0, "constant_bytes": 0, "communicator_bytes": 0,
                                 "device": "", "memory": MEMORY})

    def take(self, kind, body):
        if kind == "WELCOME":
            self.registered = True
            self.poser.note("registered")
            self.load()
        elif kind == "run":
            self.poser.note("run")
            for step in range(body["first"], body["last"] + 1):
                self.send("step", {"step": step, "seconds": 0.0, "compute_seconds": 0.0, "transfer_seconds": 0.0})
        elif kind == "finish":
            self.send("finished", {"peak_resident_bytes": 0})
        elif kind in ("stop", "abort"):
            self.node.send("ended", {"rank": self.rank, "description": "ended", "code": 0})
            return False
        return True


class Node(Client):
    def __init__(self, poser, number, devices):
        public, secret = poser.zmq.pair()
        self.worker_keys, self.number, self.connected, self.ranks = (public, secret), number, False, []
        super().__init__(poser, FIRST_NODE + number, (poser.ticket["client_public"], poser.ticket["client_secret"]),
                         {"host": f"posed-{number:04}", "pid": 2_000_000 + number, "build": poser.build, "key": public, "index": number,
                          "devices": devices})

    def alive(self):
        return "alive", {}

    def start(self, body):
        arguments = body["arguments"]
        attempt = int(arguments[arguments.index("--attempt") + 1]) if "--attempt" in arguments else 0
        self.send("identity", {"files": []})
        self.send("wire", {"endpoint": f"tcp://10.0.{self.number // 250}.{self.number % 250}:7000", "key": self.worker_keys[0]})
        self.ranks = [Rank(self.poser, rank, self, attempt) for rank in body["ranks"]]
        self.poser.clients += self.ranks
        self.send("started", {"pids": [1_000_000 + rank for rank in body["ranks"]]})

    def take(self, kind, body):
        if kind == "WELCOME":
            self.poser.note("joined")
        elif kind == "start":
            self.poser.note("started")
            self.start(body)
        elif kind == "wires":
            self.send("wired")
        elif kind == "connect":
            self.connected = True
            for rank in self.ranks:
                rank.load()
        elif kind == "stop":
            self.send("bye")
            return False
        return True


class Poser:
    """One process: some of the nodes, and their ranks."""

    def __init__(self, ticket, build, digests, numbers, devices):
        self.ticket, self.build, self.digests, self.times = ticket, build, digests, {}
        self.zmq = Zmq()
        self.clients = [Node(self, number, devices) for number in numbers]

    def note(self, what):
        self.times[what] = time.monotonic()

    def run(self):
        while self.clients:
            clients = list(self.clients)
            for i in self.zmq.poll([client.socket for client in clients], 100):
                while (raw := self.zmq.receive(clients[i].socket)) is not None:
                    message = json.loads(raw)
                    if message["type"] == "REJECT":
                        raise SystemExit(f"rank {clients[i].rank} was refused: {message['body']}")
                    if not clients[i].take(message["type"], message["body"]):
                        self.clients.remove(clients[i])
                        break
            for client in self.clients:
                client.beat()


def xxh3(data):
    lib = ctypes.CDLL("libxxhash.so.0")
    lib.XXH3_64bits.restype = ctypes.c_uint64
    return f"{lib.XXH3_64bits(data, ctypes.c_size_t(len(data))):016x}"


def digests_of(plan):
    """What each rank's worker says that it has read (runtime/identity/plan_programs.h)."""

    def read(name):
        with open(os.path.join(plan, name), "rb") as file:
            return file.read()

    tables, of_kind = json.loads(read("ranks.json")), {}
    for kind in range(tables["whole"]["kinds"]):
        name = f"kinds/{kind:04}.json"
        files = {"ranks.json", name} | {"subgraphs/" + subgraph["file"] for subgraph in json.loads(read(name))["subgraphs"]}
        of_kind[kind] = xxh3("".join(f"{file} {xxh3(read(file))}\n" for file in sorted(files)).encode())
    return [of_kind[binding["kind"]] for binding in tables["whole"]["bindings"]]


def build_of(pipeshard):
    """Known by what the linker has made of it."""
    notes = subprocess.run(["readelf", "-n", pipeshard], check=True, capture_output=True, text=True).stdout
    said = subprocess.run([pipeshard, "--version"], check=True, capture_output=True, text=True).stdout
    return {"version": re.search(r"pipeshard ([\d.]+)", said).group(1), "commit": "", "id": re.search(r"Build ID: (\w+)", notes).group(1)}


def pose(options, ticket, plan, numbers, report):
    """In a child: the times at which the last of its ranks did things go into a file."""
    poser = Poser(ticket, options.build, digests_of(plan), numbers, options.ranks_per_node)
    poser.run()
    with open(report, "w", encoding="ascii") as file:
        json.dump(poser.times, file)


def job_of(options, ranks, folder):
    nodes = ranks // options.ranks_per_node
    plan, key = os.path.join(folder, "plan"), os.path.join(folder, "job.key")
    subprocess.run([options.pipeshard, "plan", "examples/mlp.onnx", "--cluster", f"{nodes}x{options.ranks_per_node}", "--stages", "uniform:1",
                    "--microbatches", "1", "--dim", f"batch={ranks}", "-o", plan], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    job = subprocess.Popen([options.pipeshard, "run", plan, "--steps", "2", "--listen", "tcp://127.0.0.1:*", "--key-file", key],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not os.path.exists(key) and job.poll() is None:
        time.sleep(0.01)
    if job.poll() is not None:
        raise SystemExit("the coordinator ended: " + job.stderr.read())
    with open(key, encoding="ascii") as file:
        ticket = json.load(file)
    begin, children = time.monotonic(), []
    for process in range(options.processes):
        child = os.fork()
        if child == 0:
            pose(options, ticket, plan, range(process, nodes, options.processes), os.path.join(folder, f"times{process}"))
            os._exit(0)
        children.append(child)
    said = job.stderr.read()  # until it has ended
    end = time.monotonic()
    _, status, usage = os.wait4(job.pid, 0)
    for child in children if status != 0 else []:
        os.kill(child, signal.SIGKILL)
    posed = [os.wait4(child, 0) for child in children]
    if status != 0 or any(poser[1] for poser in posed):
        raise SystemExit(f"the job of {ranks} ranks failed (status {status}): {said[-2000:]}")
    times = {}
    for process in range(options.processes):
        with open(os.path.join(folder, f"times{process}"), encoding="ascii") as file:
            for what, when in json.load(file).items():
                times[what] = max(times.get(what, 0), when - begin)
    processor = [used.ru_utime + used.ru_stime for used in [usage, *(poser[2] for poser in posed)]]
    return nodes, times, end - begin, processor[0], sum(processor[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeshard", required=True)
    parser.add_argument("--ranks", default="64,256,1024", help="of one job after the other")
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4, help="that pose")
    parser.add_argument("--limit", type=float, default=5, help="seconds until all have loaded")
    options = parser.parse_args()
    options.pipeshard = os.path.abspath(options.pipeshard)
    try:
        Zmq(), xxh3(b"")
    except OSError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    options.build = build_of(options.pipeshard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    good, before = True, None
    print(f"{'ranks':>6} {'nodes':>6} {'joined':>7} {'started':>8} {'registered':>11} {'loaded':>7} {'end':>7}  processor  posing", flush=True)
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="handshake.") as folder:
            nodes, times, end, processor, posing = job_of(options, ranks, folder)
        good &= times["run"] <= options.limit
        growth = "" if before is None else f"  ~ ranks^{math.log(processor / before[1]) / math.log(ranks / before[0]):.2f}"
        print(f"{ranks:6} {nodes:6} {times['joined']:7.2f} {times['started']:8.2f} {times['registered']:11.2f} {times['run']:7.2f} {end:7.2f} "
              f"{processor:10.2f} {posing:7.2f}{growth}  {'ok' if times['run'] <= options.limit else 'MISSED'}", flush=True)
        before = ranks, processor
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
