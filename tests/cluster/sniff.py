#!/usr/bin/env python3
"""What goes over an interface, and whether tensors can be read in it.

  sniff.py capture INTERFACE FILE     writes every frame until SIGTERM; "ready" on standard output when it has begun
  sniff.py search FILE DUMPS          how many of the samples of the gradients in the dumps (safetensors) are in there: "12 of 200"

Exit code of capture: 77 when packets cannot be captured here.
"""

import glob
import json
import os
import signal
import socket
import struct
import sys

SAMPLE = 24  # bytes
SAMPLES_OF_A_TENSOR = 8
ALL_PROTOCOLS = 3


def capture(interface, path):
    try:
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        listener.bind((interface, 0))
    except OSError as error:
        print(f"skipped: packets of {interface} cannot be captured: {error}")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open(path, "wb", buffering=0) as file:
        print("ready", flush=True)
        while True:
            file.write(listener.recv(1 << 17))


def samples(folder):
    """Pieces of gradients that are no run of few values."""
    for path in sorted(glob.glob(os.path.join(folder, "**", "*.safetensors"), recursive=True)):
        with open(path, "rb") as file:
            content = file.read()
        length = struct.unpack("<Q", content[:8])[0]
        data = content[8 + length:]
        for name, entry in json.loads(content[8:8 + length]).items():
            if not name.startswith("gradient/"):
                continue
            begin, end = entry["data_offsets"]
            step = max(4, (end - begin) // SAMPLES_OF_A_TENSOR // 4 * 4)
            for at in range(begin, end - SAMPLE + 1, step):
                piece = data[at:at + SAMPLE]
                if len(set(piece)) > SAMPLE // 2:
                    yield piece


def search(path, folder):
    with open(path, "rb") as file:
        captured = file.read()
    wanted = set(samples(folder))
    found = sum(piece in captured for piece in wanted)
    print(f"{found} of {len(wanted)}")


if __name__ == "__main__":
    {"capture": capture, "search": search}[sys.argv[1]](*sys.argv[2:])
