#!/usr/bin/env python3
"""The table of faults in docs/reliability.md: the tests that its rows name exist, and what they say.

  tests/house/reliability_table.py                       checks that they exist
  tests/house/reliability_table.py --run build/dev 2 5   runs those of rows 2 and 5 (all rows where none is given), and prints the table
                                                         with a column of results
  tests/house/reliability_table.py --run build/dev --write   and puts the results into the last column of the table

A row names tests in its column "shown by", in backticks: `job_test: NameOfATest` (NameOfATest, or a suite, in job_test.cc or in the sources of
the program job_test), `AnotherName` (in the same), `limits_test` (all of it), `tests/cluster/link_test.sh` and the cases behind it.
Exit code: 0; 1 when a test does not exist, fails, or (with --run) was not found in the build.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P)\((\w+), *(\w+)\)", re.MULTILINE)
PROGRAM = re.compile(r"pipeshard_test\((\w+)\s+SOURCES\s+([^)]*?)\s+LIBRARIES")
SCRIPT = re.compile(r"\.(sh|py)$")


class Tree:
    """What tests there are, by the sources alone."""

    def __init__(self, root):
        self.files = {}     # path: its tests, as (suite, name)
        self.programs = {}  # name: paths of sources
        self.scripts = {}   # path: text
        self.lists = []     # texts of CMakeLists.txt
        for folder, _, names in os.walk(os.path.join(root, "tests")):
            for name in names:
                path = os.path.join(folder, name)
                if name == "CMakeLists.txt":
                    self.lists.append(self.text(path))
                    for program, sources in PROGRAM.findall(self.lists[-1]):
                        self.programs[program] = [os.path.normpath(os.path.join(folder, source)) for source in sources.split()]
                elif name.endswith(".cc"):
                    self.files[path] = TEST.findall(self.text(path))
                elif SCRIPT.search(name):
                    self.scripts[path] = self.text(path)

    @staticmethod
    def text(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def sources(self, name):
        """Of a program, and files of that name."""
        by_file = [path for path in self.files if os.path.basename(path) == name + ".cc"]
        return by_file + [path for path in self.programs.get(name, []) if path not in by_file]

    def tests(self, sources):
        return [test for path in sources for test in self.files.get(path, [])]

    def script(self, name):
        found = [path for path in self.scripts if path.endswith(os.sep + name)]
        return found[0] if found else None


class Row:
    """`wanted`: names of tests (Suite.Name) and scripts with their cases; `missing`: what does not exist."""

    def __init__(self, line, tree):
        self.cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        self.number = int(self.cells[0])
        self.tests, self.scripts, self.missing = set(), [], []
        self.tree, self.sources = tree, []
        parts = re.split(r"`([^`]*)`", self.cells[4])
        for name, behind in zip(parts[1::2], parts[2::2]):
            if not self.add(name, behind):
                self.missing.append(name)

    def add(self, name, behind):
        if SCRIPT.search(name):
            return self.add_script(name, behind)
        program, _, test = name.rpartition(": ")
        if not program and self.tree.sources(name):
            program, test = name, ""
        if program:
            self.sources = self.tree.sources(program)
        suite, _, single = test.rpartition(".")
        everywhere = self.tree.files if suite else self.sources
        found = {f"{its_suite}.{its_name}" for its_suite, its_name in self.tree.tests(everywhere)
                 if not test or (its_name == single and suite in ("", its_suite)) or its_suite == test}
        self.tests |= found
        return bool(found) or self.add_command(test, suite)

    def add_command(self, test, suite):
        """A test that is a command of its own: it stands in a CMakeLists.txt."""
        if suite and any(re.search(rf"NAME {re.escape(test)}\b", text) for text in self.tree.lists):
            self.tests.add(test)
            return True
        return False

    def add_script(self, name, behind):
        path = self.tree.script(name)
        if path is None:
            return False
        cases = re.findall(r"\w+", re.match(r"([\w, ]*)", behind.split("(")[0]).group(1))
        unknown = [case for case in cases if not re.search(rf"\b{case}\b", self.tree.scripts[path])]
        self.missing += [f"{name} {case}" for case in unknown]
        self.scripts.append((os.path.basename(path), cases))
        return True

    def numbers_in(self, listed):
        """Of the build's tests: those of this row; and what the row names that is none of them."""
        numbers, absent = set(), []
        for wanted in sorted(self.tests):
            own = [i for i, test in listed if re.fullmatch(rf"(\w+/)?{re.escape(wanted)}(/.*)?", test["name"])]
            numbers.update(own)
            if not own:
                absent.append(wanted)
        for script, cases in self.scripts:
            for case in cases or [None]:
                own = [i for i, test in listed if any(os.path.basename(word) == script for word in test.get("command", []))
                       and (case is None or case in test["command"])]
                numbers.update(own)
                if not own:
                    absent.append(script + (f" {case}" if case else "") + " (by hand)")
        return numbers, absent


def page_of(root):
    return os.path.join(root, "docs", "reliability.md")


def rows_of(root):
    tree = Tree(root)
    text = Tree.text(page_of(root))
    return [Row(line, tree) for line in text.splitlines() if re.match(r"\| \d+ \|", line)]


def results_of(build, numbers):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.xml")
        subprocess.run(["ctest", "--test-dir", build, "-I", "0,0,0," + ",".join(map(str, sorted(numbers))), "-Q", "--output-junit", path],
                       check=False, stdout=subprocess.DEVNULL)
        return xml.parse(path).getroot().findall("testcase")


def describe(row, listed, build):
    numbers, absent = row.numbers_in(listed)
    cases = results_of(build, numbers) if numbers else []
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [case.get("name") for case in cases if case.get("status") == "fail"]
    parts = [f"{len(cases) - len(skipped) - len(failed)} passed"]
    parts += [f"{len(skipped)} skipped"] if skipped else []
    parts += [f"FAILED: {', '.join(failed)}"] if failed else []
    parts += [f"not run: {', '.join(absent)}"] if absent else []
    lost = [name for name in absent if not name.endswith("(by hand)")]
    return "; ".join(parts), bool(failed or lost)


def write_result(root, row, text):
    """Into the row's last column."""
    lines = Tree.text(page_of(root)).splitlines(keepends=True)
    cells = [*row.cells[:5], f"{text} ({time.strftime('%Y-%m-%d')})"]
    lines = [f"| {' | '.join(cells)} |\n".replace("|  |", "| |") if line.startswith(f"| {row.number} |") else line for line in lines]
    with open(page_of(root), "w", encoding="utf-8") as file:
        file.writelines(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT)
    parser.add_argument("--run", metavar="BUILD")
    parser.add_argument("--write", action="store_true", help="the results into docs/reliability.md")
    parser.add_argument("rows", nargs="*", type=int, metavar="ROW")
    options = parser.parse_args()
    rows = rows_of(options.root)
    faults = [f"row {row.number} names {name}, which does not exist" for row in rows for name in row.missing]
    faults += [f"row {expected} is missing" for expected in range(1, 1 + max((row.number for row in rows), default=1))
               if expected not in {row.number for row in rows}]
    faults += [f"row {row.number} is OK, and no test shows it" for row in rows if row.cells[3] == "OK" and not row.tests and not row.scripts]
    print("\n".join(faults) if faults else f"{len(rows)} rows name {sum(len(row.tests) + len(row.scripts) for row in rows)} tests and scripts")
    if faults or not options.run:
        return 1 if faults else 0
    listed = list(enumerate(json.loads(subprocess.run(["ctest", "--test-dir", options.run, "--show-only=json-v1"], check=True,
                                                      capture_output=True).stdout)["tests"], 1))
    bad = False
    print("\n| # | fault | today | results |\n|---|---|---|---|")
    for row in rows:
        if options.rows and row.number not in options.rows:
            continue
        text, is_bad = describe(row, listed, options.run)
        bad |= is_bad
        print(f"| {row.number} | {row.cells[1]} | {row.cells[3]} | {text} |", flush=True)
        if options.write:
            write_result(options.root, row, text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
