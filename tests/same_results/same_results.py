#!/usr/bin/env python3
"""Shows that a change of the code has not changed what pipeshard makes: the command lines of commands.txt are
run, and what comes of them is compared, with what another build makes or with hashes that were stored.

  same_results.py --build build/release/tools/pipeshard --other OLD/build/release/tools/pipeshard
  same_results.py --build build/release/tools/pipeshard                  (with hashes.json)
  same_results.py --build build/release/tools/pipeshard --sample         (the marked lines only)
  same_results.py --build OLD/build/release/tools/pipeshard --write-hashes

Two builds, run one after the other on the same models in the same scratch folder, must agree in everything:
exit codes, what was printed, and every file (plan.json, ranks.json, kinds/ and other JSON, .onnx, .safetensors,
.csv, .svg, the report). What a clock or the memory of a process says is left out (CLOCKS, UNCOMPARED,
MEASURED). JSON that differs is listed path by path. Stored are hashes of plan.json and of the programs (ranks.json, kinds/) only:
these are the same on every machine. Exit code: 0; 1 when something differs; 64 or 66 when this cannot be run.
"""

import argparse
import difflib
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMMANDS = os.path.join(HERE, "commands.txt")
HASHES = os.path.join(HERE, "hashes.json")
ENVIRONMENT = dict(os.environ, PIPESHARD_PROFILE="off", LC_ALL="C")
TIME_LIMIT = 120.0  # seconds of one pipeshard; a few are usual
MOST_SHOWN = 12  # differences of one file or text

# Printed lines that depend on the clock: progress of training and of a search. And parts of lines.
CLOCKS = [
    (re.compile(r"^step \d+/\d+ .* steps/s .*\n", re.MULTILINE), ""),
    (re.compile(r"^.* \.\.\.\n", re.MULTILINE), ""),
    (re.compile(r"largest worker [\d.]+ \w+"), "largest worker -"),
]
COMPARED = (".json", ".onnx", ".safetensors", ".csv", ".svg", ".html")
# A hash of plan.json with its absolute paths; what validate has recorded, and report.html shows then.
UNCOMPARED = ("made_from.json", "trace.json")
# Subgraphs are named by their contents, in which are constants that this machine has computed.
SUBGRAPH_FILE = re.compile(rb'"file": ?"\w+\.onnx"')
# Keys of validation.json.
MEASURED = {"seconds", "compute_seconds", "transfer_seconds", "peak_resident_bytes"}


def fail(code, message):
    print(f"same_results.py: {message}", file=sys.stderr)
    sys.exit(code)


class Command:
    """A line of commands.txt: its number, counted from 1, its text, and whether the sample has it."""

    def __init__(self, number, line):
        self.number = number
        self.in_sample = line.startswith("* ")
        self.text = line.removeprefix("* ")

    def steps(self, out):
        """The commands that && joins, each a list of words."""
        text = re.sub(r"\{model:(\w+)\}", lambda match: model_path(match[1]), self.text)
        text = re.sub(r"\{file:([^}]+)\}", r"\1", text).replace("{out}", out)
        return [shlex.split(part) for part in text.split(" && ")]


def model_path(name):
    path = f"examples/{name}.onnx"
    return path if os.path.exists(os.path.join(ROOT, path)) else f"tests/oracle/golden/{name}.onnx"


LEFT_OUT = []  # --but


def load_commands():
    with open(COMMANDS, encoding="utf-8") as file:
        text = re.sub(r"^#.*\n", "", file.read(), flags=re.MULTILINE)
    text = re.sub(r" *\\\n *", " ", text)
    return [Command(number, line) for number, line in enumerate(filter(None, text.split("\n")), start=1)]


def change_file(kind, path, *words):
    """`write` and `edit`. Returns an exit code: 1 where the text that is to be replaced is not there."""
    if kind == "write":
        text = " ".join(words)
    else:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        text = before.replace(words[0], words[1], 1)
        if text == before:
            return 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


def run_step(build, words, out):
    """An exit code, and what was printed."""
    try:
        done = subprocess.run([build] + words, cwd=ROOT, env=ENVIRONMENT, timeout=TIME_LIMIT,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return f"none within {TIME_LIMIT:.0f} s", {}
    outputs = {"stdout": done.stdout, "stderr": done.stderr}
    return done.returncode, {name: printed(outputs[name], build, out) for name in outputs}


def run_command(command, build, scratch):
    """Runs the steps, up to the first that fails, and returns what they made: {name: text or bytes}."""
    out = os.path.join(scratch, "out")
    os.mkdir(out)
    items = {}
    for index, words in enumerate(command.steps(out), start=1):
        changes = words[0] in ("write", "edit")
        code, texts = (change_file(*words), {}) if changes else run_step(build, words, out)
        for name, text in dict(texts, **{"exit code": str(code)}).items():
            items[f"step {index} ({words[0]}) {name}"] = text
        if code != 0:
            break
    items.update(files_of(out))
    shutil.rmtree(out)
    return items


def exit_codes(items):
    return " ".join(items[name] for name in items if name.endswith(" exit code"))


def printed(output, build, out):
    text = output.decode(errors="replace").replace(build, "<pipeshard>")
    text = text.replace(out, "<out>").replace(ROOT, "<checkout>")
    for pattern, replacement in CLOCKS:
        text = pattern.sub(replacement, text)
    return text


def files_of(out):
    """The files that are compared, absolute paths in them replaced."""
    files = {}
    for path in glob.glob(out + "/**", recursive=True):
        name = os.path.relpath(path, out)
        folder, base = os.path.split(path)
        if not os.path.isfile(path) or not base.endswith(COMPARED) or base in UNCOMPARED:
            continue
        if base == "report.html" and os.path.exists(os.path.join(folder, "trace.json")):
            continue
        with open(path, "rb") as file:
            content = file.read()
        for pattern in LEFT_OUT if base.endswith(".json") else ():
            content = re.sub(pattern, b"", content)
        if base == "validation.json":
            content = json.dumps(without_measured(json.loads(content))).encode()
        files[name] = content.replace(out.encode(), b"<out>").replace(ROOT.encode(), b"<checkout>")
    return files


def without_measured(value):
    if isinstance(value, dict):
        return {key: without_measured(value[key]) for key in value if key not in MEASURED}
    return [without_measured(entry) for entry in value] if isinstance(value, list) else value


def hashes_of(command, items):
    def one(pattern):
        paths = sorted(path for path in items if re.search(pattern, path))
        digest = hashlib.sha256()
        for path in paths:
            content = SUBGRAPH_FILE.sub(b"", items[path])
            digest.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
        return digest.hexdigest()[:16] if paths else "none"

    line = hashlib.sha256(command.text.encode()).hexdigest()[:8]
    return {"command": line, "plan": one(r"(^|/)plan\.json$"), "programs": one(r"(^|/)(ranks\.json|kinds/\w+\.json)$")}


def json_differences(old, new, path=""):
    """Lines that say where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in list(old) + [key for key in new if key not in old]:
            if key not in old or key not in new:
                yield f"{path}.{key}: {'only' if key in old else 'not'} in --other"
            else:
                yield from json_differences(old[key], new[key], f"{path}.{key}")
        if old == new and list(old) != list(new):
            yield f"{path}: the order of its keys"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} entries; {len(new)}"
        for index, (one, other) in enumerate(zip(old, new)):
            yield from json_differences(one, other, f"{path}[{index}]")
    elif old != new or type(old) is not type(new):
        yield f"{path}: {json.dumps(old)[:80]}; {json.dumps(new)[:80]}"


def described(name, old, new):
    """Lines that say how an item of two builds differs."""
    if old is None or new is None:
        return [f"{name}: only with {'--build' if old is None else '--other'}"]
    if name.endswith(".json"):
        lines = list(json_differences(json.loads(old), json.loads(new))) or ["spaces, form of numbers"]
    elif isinstance(old, str):
        lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    else:
        at = next((i for i, pair in enumerate(zip(old, new)) if pair[0] != pair[1]), min(len(old), len(new)))
        lines = [f"{len(old)} bytes; {len(new)}, different from byte {at} on"]
    more = [f"... and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return [f"{name} (--other; --build):"] + [f"    {line}" for line in lines[:MOST_SHOWN] + more]


def compare_builds(commands, build, other, scratch):
    """The number of commands with differences, each of which is printed."""
    different = 0
    for command in commands:
        start = time.monotonic()
        old, new = (run_command(command, each, scratch) for each in (other, build))
        names = sorted(name for name in set(old) | set(new) if old.get(name) != new.get(name))
        print(f"{command.number:3} {'DIFFERENT' if names else 'equal'}: {len(old)} items, exit codes"
              f" {exit_codes(old)}, {time.monotonic() - start:.1f} s", flush=True)
        different += bool(names)
        if names:
            print(f"    {command.text}")
        for name in names:
            print(*(f"    {line}" for line in described(name, old.get(name), new.get(name))), sep="\n")
    return different


def compare_hashes(commands, build, _other, scratch):
    with open(HASHES, encoding="utf-8") as file:
        stored = json.load(file)
    different = 0
    for command in commands:
        items = run_command(command, build, scratch)
        found = hashes_of(command, items)
        expected = stored.get(f"{command.number:03}", {})
        names = [name for name in found if found[name] != expected.get(name)]
        if "command" in names:
            names = ["hashes.json was written for another line of commands.txt (--write-hashes)"]
        print(f"{command.number:3} {'DIFFERENT: ' + ' and '.join(names) if names else 'equal'}, exit codes"
              f" {exit_codes(items)}" + (f"\n    {command.text}" if names else ""), flush=True)
        different += bool(names)
    return different


def write_hashes(commands, build, scratch):
    lines = []
    for command in commands:
        items = run_command(command, build, scratch)
        print(f"{command.number:3} exit codes {exit_codes(items)}", flush=True)
        lines.append(f'"{command.number:03}": {json.dumps(hashes_of(command, items))}')
    with open(HASHES, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def chosen(commands, arguments):
    if arguments.sample:
        return [command for command in commands if command.in_sample]
    numbers = arguments.only.split(",") if arguments.only else []
    by_number = {str(command.number): command for command in commands}
    for number in set(numbers) - set(by_number):
        fail(64, f"--only: found {number}; expected a number from 1 to {len(commands)}")
    return [by_number[number] for number in numbers] or commands


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", metavar="FILE", help="the command pipeshard that is looked at")
    parser.add_argument("--other", metavar="FILE", help="that of another build; without it, hashes.json")
    parser.add_argument("--but", action="append", default=[], metavar="REGEX",
                        help="text in .json files that a change means to change: not compared; repeatable")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="N,M", help="these commands, by number (--list)")
    which.add_argument("--sample", action="store_true", help="the commands that are marked with * only")
    which.add_argument("--write-hashes", action="store_true", help="store the hashes of --build, of all")
    parser.add_argument("--list", action="store_true", help="list the commands with their numbers")
    arguments = parser.parse_args()
    LEFT_OUT.extend(pattern.encode() for pattern in arguments.but)
    commands = load_commands()
    if arguments.list:
        for command in commands:
            print(f"{command.number:3} {'*' if command.in_sample else ' '} {command.text}")
        return 0
    if not arguments.build or arguments.write_hashes and arguments.other:
        fail(64, "give --build FILE, and at most one of --other FILE and --write-hashes (--help)")
    build, other = (path and os.path.abspath(path) for path in (arguments.build, arguments.other))
    for path in filter(None, (build, other)):
        if not os.access(path, os.X_OK):
            fail(66, f"{path} cannot be run")
    commands = chosen(commands, arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="same_results.") as scratch:
        if arguments.write_hashes:
            write_hashes(commands, build, scratch)
            return 0
        compare = compare_builds if other else compare_hashes
        different = compare(commands, build, other, scratch)
    print(f"{len(commands) - different} of {len(commands)} commands equal, {time.monotonic() - start:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
