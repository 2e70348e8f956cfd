#!/usr/bin/env python3
"""A cable between the hosts of namespaces.sh that loses packets, for kernels without netem: a TAP device at each end, in the place of the
veth pair, and this process between them, which hands frames on, or does not.

  tests/cluster/lossy_cable.py 1      one packet in a hundred, in both directions; says "ready", and when it is ended (SIGTERM)
                                      "lost 12 of 1234"

Which ones is drawn from a fixed seed. Exit code 77 where no TAP device can be made.
"""

import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x2, 0x1000
LONGEST_FRAME = 65536


def enter(namespace):
    with open(namespace, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def open_end(host):
    """The TAP device cable0 or cable1 in its host, with that host's address."""
    enter(f"/run/netns/host{host}")
    name = f"cable{host}"
    subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL, check=False)  # with it goes the other end
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    for command in (["address", "add", f"192.0.2.{host + 1}/24", "dev", name], ["link", "set", name, "up"]):
        subprocess.run(["ip", *command], check=True)
    return descriptor


def main():
    share = float(sys.argv[1]) / 100
    dice = random.Random(1)
    lost = all_frames = 0
    try:
        ends = [open_end(host) for host in (0, 1)]
    except OSError as error:
        print(f"skipped: no TAP device can be made here: {error}", flush=True)
        sys.exit(77)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake)
    print("ready", flush=True)
    while True:
        ready = select.select([*ends, ended], [], [])[0]
        if ended in ready:
            break
        for end in ready:
            try:
                frame = os.read(end, LONGEST_FRAME)
                all_frames += 1
                if dice.random() < share:
                    lost += 1
                else:
                    os.write(ends[1 - ends.index(end)], frame)
            except BlockingIOError:
                lost += 1  # the other end takes no more
    print(f"lost {lost} of {all_frames}", flush=True)


if __name__ == "__main__":
    main()
