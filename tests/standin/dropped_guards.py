#!/usr/bin/env python3
"""Every index guard of the CUDA kernels is needed, and missed when it is gone.

    tests/standin/dropped_guards.py BUILD [--sample N] [--files F...]

A guard says whether an index that a thread makes of its number, or reads from a tensor, is one of the tensor's. These
are found by their form in the sources: the bound of a loop that begins with threadIdx or blockIdx, of a condition on
threadIdx, and of an index that data give. The twins of these files (README.md) are compiled once more with guards that
an environment variable makes let one index more through: the least that can go wrong without a guard. The kernels'
tests then run once for each guard, and the stand-in must report it. A source that has a bound in another form is an
error, so that none is forgotten.

--sample: so many guards, evenly spread; only their files are compiled. --files: guards of files whose path ends so.
Exit code 1 when one goes unnoticed.
"""
import argparse
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

from kernel_tests import ROOT, KernelTests, spread

HEADERS = ["runtime/kernels/base/cuda_block.h", "runtime/kernels/base/cuda_indices.h"]
BOUND = r"((?:[^;()<>]|\([^()]*\))+?)"
FORMS = [
    # for (... i = ... threadIdx.x ...; i < BOUND [&& ...];
    re.compile(r"for \(int64_t (?P<i>\w+) = [^;]*(?:threadIdx|blockIdx)[^;]*;\s*(?P=i) < (?P<bound>" + BOUND +
               r")(?= &&|;)", re.S),
    # if (threadIdx.x < BOUND
    re.compile(r"if \(threadIdx\.x < (?P<bound>\w+)(?= &&|\))"),
    # row < 0 || row >= BOUND ?
    re.compile(r"(?P<i>\w+) < 0 \|\| (?P=i) >= (?P<bound>\w+)(?= \?)"),
    # label >= 0 && label < BOUND
    re.compile(r"(?P<i>\w+) >= 0 && (?P=i) < (?P<bound>[\w.\[\]]+)(?= &&|;)"),
]
LOOKS_LIKE = re.compile(r"for \([^;]*(?:threadIdx|blockIdx)[^;]*;|if \(threadIdx\.x <|< 0 \|\||>= 0 &&", re.S)
VARIABLE = "STANDIN_WEAK_GUARD"
# Of the copies: NAME is 1 where its guard is the one that is asked for.
DEFINITION = """static const int guard_%d = [] {
  const char* asked = std::getenv("%s");
  return asked != nullptr && std::strcmp(asked, "%s") == 0 ? 1 : 0;
}();
"""


class Source:
    """A file with kernels: its guards, and a copy in which each can be weakened."""

    def __init__(self, name):
        self.name = name
        with open(os.path.join(ROOT, name)) as file:
            self.text = file.read()
        self.bounds = sorted(m.span("bound") for form in FORMS for m in form.finditer(self.text))
        if len(self.bounds) != len(LOOKS_LIKE.findall(self.text)):
            sys.exit("%s: %d guards where %d look like one" % (name, len(self.bounds), len(LOOKS_LIKE.findall(self.text))))
        self.guards = ["%s:%d:%d" % (name, self.text.count("\n", 0, begin) + 1,
                                     begin - self.text.rfind("\n", 0, begin)) for begin, _ in self.bounds]

    def write_copy(self, folder):
        copy = self.text
        for i, (begin, end) in reversed(list(enumerate(self.bounds))):
            copy = "%s(%s) + guard_%d%s" % (copy[:begin], copy[begin:end], self.number(i), copy[end:])
        definitions = "".join(DEFINITION % (self.number(i), VARIABLE, guard) for i, guard in enumerate(self.guards))
        head = "%s#include <cstdlib>\n#include <cstring>\n" % ("#pragma once\n" if self.name.endswith(".h") else "")
        path = os.path.join(folder, self.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(head + definitions + '#line 1 "%s"\n' % os.path.join(ROOT, self.name) + copy)
        return path

    def number(self, guard):
        """Of one of this file's, among all of a twin's: headers come into sources."""
        return guard + (1000 * (1 + HEADERS.index(self.name)) if self.name in HEADERS else 0)


def sources():
    names = glob.glob(os.path.join("runtime", "**", "*.cu"), root_dir=ROOT, recursive=True)
    return {name: Source(name) for name in sorted(names) + HEADERS}


def compile_twin(build, folder, names):
    """A library of the copies of these: where it is loaded behind the whole twin, their kernels are these."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        commands = {os.path.relpath(entry["file"], ROOT): entry["command"] for entry in json.load(file)
                    if "standin_twin.dir" in entry["command"]}
    objects = []
    for name in names:
        words = shlex.split(commands[name])
        objects.append(os.path.join(folder, name + ".o"))
        words[words.index("-o") + 1] = objects[-1]
        words[-1] = os.path.join(folder, name)
        subprocess.run(words[:1] + ["-I" + folder, "-fno-gnu-unique"] + words[1:], check=True, cwd=build)
    library = os.path.join(folder, "guards.so")
    standin = os.path.join(build, "tests", "standin")
    cudart = glob.glob(os.path.join(standin, "libcudart.so"))
    subprocess.run(["c++", "-shared", "-Wl,-Bsymbolic", "-o", library, *objects, *cudart], check=True)
    return library


def reported(tests, twins, guard):
    """The first report without this guard: of the kernels' tests, then of those that try more."""
    environment = {"STANDIN_TWINS": twins, VARIABLE: guard}
    for program, more in (("cuda_kernels_test", {}), ("cuda_kernels_test", {"PIPESHARD_CUDNN": "off"}),
                          ("cuda_conformance_test", {"PIPESHARD_CUDNN": "off"})):
        reports = tests.run(dict(environment, **more), program, until=bool)
        if reports:
            return reports[0]
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    parser.add_argument("--files", nargs="+", default=[""])
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    found = sources()
    guards = [(name, guard) for name, source in found.items() for guard in source.guards
              if name.endswith(tuple(options.files))]
    chosen = spread(guards, options.sample)
    with tempfile.TemporaryDirectory(prefix="pipeshard-guards-") as folder:
        for source in found.values():
            source.write_copy(folder)
        files = {name for name, _ in chosen}
        if files & set(HEADERS):  # any kernel may have their guards
            files = set(found)
        library = compile_twin(build, folder, sorted(files - set(HEADERS)))
        tests = KernelTests(build, folder)
        twins = "%s:%s" % (tests.environment["STANDIN_TWINS"], library)
        missed = 0
        for _, guard in chosen:
            report = reported(tests, twins, guard)
            missed += report is not None
            print("%s: %s" % (guard, report[:150] if report else "NOBODY MISSES IT"), flush=True)
    print("%d guards; %d of %d removals reported" % (len(guards), missed, len(chosen)))
    sys.exit(1 if missed < len(chosen) or not chosen else 0)


if __name__ == "__main__":
    main()
