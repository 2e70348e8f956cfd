#!/usr/bin/env python3
"""What each kernel of the CUDA module takes of a GPU, read from the machine code that is shipped.

    kernel_resources.py MODULE.so [--all] [--nvcc NVCC]

The module carries an ELF file for each of its source files and architectures. There, .nv.info has the
registers of a thread and its frame on the stack for every kernel. Spilled registers go into the frame: no
frame, no spills. Fails, and names the kernel, where one has a frame, or where a block's registers or shared
memory are more than a GPU has. Prints the kernels with the most registers; --all: every one.

--nvcc: shows first that the reading finds what it looks for. A kernel with a frame and spills is compiled,
and what is read of it must be what ptxas says.
"""
import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from typing import NamedTuple

CUDA_MACHINE = 190                               # e_machine of ELF files for NVIDIA's GPUs
FRAME_SIZE, REGISTERS = 0x11, 0x2F               # attributes of .nv.info: (symbol, value)
SIZED = 4                                        # the form of an attribute that has a length
BLOCK_REGISTERS, BLOCK_SHARED = 65536, 48 << 10  # of compute capabilities 8.0 and 9.0
REGISTER_UNIT = 8                                # a thread gets whole units

# CUDA's own sin, cos and tan of float64 reduce large arguments with digits that they keep in a frame.
LIBRARY_FRAME = 40
HAS_LIBRARY_FRAME = re.compile(r"unaryKernelINS0_5(Sin|Cos|Tan)OpEdd")

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 4))
PLANTED = """
__global__ void planted(const float* x, float* y, int n) {
  __shared__ float all[100];
  float kept[64], table[8];
  for (int i = 0; i < 64; ++i) kept[i] = x[i * n];
  for (int i = 0; i < 8; ++i) table[i] = x[i + n];
  all[threadIdx.x] = table[n & 7];
  __syncthreads();
  float sum = all[n];
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 64; ++i) sum += kept[i] * (kept[i] += x[j]);
  *y = sum;
}
"""


class Kernel(NamedTuple):
    architecture: int
    name: str
    registers: int  # of a thread
    frame: int      # bytes
    shared: int     # bytes

    def block_registers(self):
        return -(-self.registers // REGISTER_UNIT) * REGISTER_UNIT * block_threads()

    def faults(self):
        if self.frame > (LIBRARY_FRAME if HAS_LIBRARY_FRAME.search(self.name) else 0):
            yield "a frame of %d bytes on the stack" % self.frame
        if self.block_registers() > BLOCK_REGISTERS:
            yield "%d registers for a block, of %d" % (self.block_registers(), BLOCK_REGISTERS)
        if self.shared > BLOCK_SHARED:
            yield "%d bytes of shared memory, of %d" % (self.shared, BLOCK_SHARED)


def block_threads():
    """Of every launch, or fewer."""
    text = open(os.path.join(ROOT, "runtime", "kernels", "base", "cuda_launch.h")).read()
    return int(re.search(r"kBlockThreads = (\d+);", text)[1])


def text_at(data, offset):
    return data[offset:data.index(b"\0", offset)].decode()


def sections_of(elf):
    """(name, contents, size) of each section of a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + size * i) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        yield text_at(elf, headers[names][4] + name), elf[offset:offset + length], length


def attributes_of(info):
    """(attribute, payload) of a .nv.info section."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == SIZED:
            yield attribute, info[at:at + size]
            at += size


def kernels_of(elf):
    e_flags, = struct.unpack_from("<I", elf, 48)
    sections = {name: (contents, size) for name, contents, size in sections_of(elf)}
    symbols, strings = sections[".symtab"][0], sections[".strtab"][0]
    found = {FRAME_SIZE: {}, REGISTERS: {}}
    for attribute, payload in attributes_of(sections[".nv.info"][0]):
        if attribute in found:
            symbol, value = struct.unpack("<II", payload)
            found[attribute][text_at(strings, struct.unpack_from("<I", symbols, 24 * symbol)[0])] = value
    for name, registers in found[REGISTERS].items():
        shared = sections.get(".nv.shared." + name, (b"", 0))[1]
        yield Kernel((e_flags >> 8) & 0xFF, name, registers, found[FRAME_SIZE][name], shared)


def kernels_in(data):
    """Of all machine code in the bytes of a file."""
    at = data.find(b"\x7fELF\x02\x01")
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == CUDA_MACHINE:
            yield from kernels_of(data[at:])
        at = data.find(b"\x7fELF\x02\x01", at + 4)


def check_reading(nvcc):
    """That a planted frame is found, and all is as ptxas says."""
    with tempfile.TemporaryDirectory(prefix="pipeshard-kernel-") as folder:
        source, code = os.path.join(folder, "planted.cu"), os.path.join(folder, "planted.cubin")
        with open(source, "w") as file:
            file.write(PLANTED)
        said = subprocess.run(
            [nvcc, "-cubin", "-arch=sm_80", "-maxrregcount=32", "-Xptxas=-v", source, "-o", code],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        with open(code, "rb") as file:
            kernel, = kernels_in(file.read())
    frame, spills = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said).groups())
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    shared = int(re.search(r"(\d+) bytes smem", said)[1])
    if (kernel.registers, kernel.frame, kernel.shared) != (registers, frame, shared) or not spills:
        sys.exit("ptxas says of the planted kernel: %s\nread: %s" % (said, kernel))
    if not any("a frame of %d bytes" % frame in fault for fault in kernel.faults()):
        sys.exit("the planted frame is accepted")
    print("a planted frame of %d bytes is found: %d registers, %d bytes of shared memory" % (
        frame, registers, shared))


def plain(names):
    """As in the sources, where there is a c++filt."""
    if shutil.which("c++filt") is None:
        return names
    return subprocess.run(["c++filt"], input="\n".join(names), check=True, stdout=subprocess.PIPE,
                          text=True).stdout.replace("pipeshard::kernels::", "").splitlines()


def show(architecture, kernels, every_one):
    """A table of an architecture's kernels, most registers first."""
    shown = kernels if every_one else kernels[:10] + [kernel for kernel in kernels[10:] if kernel.frame]
    for kernel, name in zip(shown, plain([kernel.name for kernel in shown])):
        print("%d  %9d  %10d  %5d  %6d  %s" % (architecture, kernel.registers, kernel.block_registers(),
                                              kernel.frame, kernel.shared, name[:100]))
    print("sm_%d: %d kernels; a block of %d threads has at most %d of %d registers; %d have a frame that is "
          "CUDA's own" % (
              architecture, len(kernels), block_threads(), kernels[0].block_registers(), BLOCK_REGISTERS,
              sum(kernel.frame > 0 and not list(kernel.faults()) for kernel in kernels)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--nvcc")
    options = parser.parse_args()
    if options.nvcc:
        check_reading(options.nvcc)
    with open(options.module, "rb") as file:
        kernels = sorted(kernels_in(file.read()), key=lambda k: (k.architecture, -k.registers, k.name))
    if not kernels:
        sys.exit("%s has no machine code of kernels" % options.module)
    print("sm  registers  of a block  frame  shared  kernel")
    for architecture in sorted({kernel.architecture for kernel in kernels}):
        show(architecture, [kernel for kernel in kernels if kernel.architecture == architecture], options.all)
    faults = ["sm_%d: %s: %s" % (kernel.architecture, kernel.name, fault)
              for kernel in kernels for fault in kernel.faults()]
    print("\n".join(faults) if faults else "no other frame, so no spills")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
