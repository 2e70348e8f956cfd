#!/usr/bin/env python3
"""What a build spends its time on: the costliest objects, and the costliest headers.

    cmake/build_costs.py [BUILD_DIR]              after a build (default: build/release); --top N rows (20)
    cmake/build_costs.py --measure [BUILD_DIR]    builds `pipeshard` from nothing in a scratch folder, without
                                                  ccache, and prints the processor time of its own objects

Objects: how long each took, from ninja's log; with several jobs on few cores these are times by the clock, so
compare them with each other. Headers: the time to read a header alone (g++ -fsyntax-only) times the number of
objects that read it (ninja's record of dependencies); of headers that everything reads through the precompiled
one, what they would cost without it.
"""

import argparse
import collections
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def objects(build):
    """(seconds, object), of the last time that each was made, dearest first."""
    taken = {}
    with open(os.path.join(build, '.ninja_log')) as log:
        for line in log:
            fields = line.rstrip('\n').split('\t')
            if len(fields) == 5 and fields[3].endswith('.o'):
                taken[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return sorted(((seconds, name) for name, seconds in taken.items()), reverse=True)


def readers(build):
    """By header (as the compiler saw it): the number of objects that read it."""
    text = subprocess.run(['ninja', '-C', build, '-t', 'deps'], capture_output=True, text=True, check=True).stdout
    count = collections.Counter()
    for line in text.splitlines():
        if line.startswith('    ') and line.endswith(('.h', '.hpp')):
            count[os.path.normpath(os.path.join(build, line.strip()))] += 1
    return count


def included():
    """The headers that our sources name: ours by path, others as <name>."""
    names = collections.Counter()
    files = subprocess.run(['git', 'ls-files', '*.cc', '*.h'], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in files.stdout.split():
        if name.startswith(('tests/', 'benchmarks/')) or not os.path.exists(os.path.join(ROOT, name)):
            continue
        with open(os.path.join(ROOT, name)) as source:
            names.update(re.findall(r'^#include (<[^>]+>|"[^"]+")', source.read(), re.M))
    return names


def flags(build):
    """Include folders and definitions of one product object."""
    found = []
    with open(os.path.join(build, 'compile_commands.json')) as commands:
        for command in json.load(commands):
            found += re.findall(r'(?:-isystem \S+|-I\S+|-D\S+)', command['command'])
    return [part for flag in dict.fromkeys(found) for part in flag.split() if 'PIPESHARD' not in part]


def alone(header, options):
    """Seconds to read the header by itself; the time of an empty file is taken off by the caller."""
    source = f'#include {header}\n' if header else '\n'
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(['g++', '-std=c++20', '-fsyntax-only', '-x', 'c++', '-', *options], input=source, text=True,
                   cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def headers(build, top):
    count = readers(build)
    by_end = collections.Counter()
    for path, objects_of in count.items():
        by_end[os.path.relpath(path, ROOT) if path.startswith(ROOT) else path] += objects_of

    def objects_reading(name):
        plain = name[1:-1]
        if name.startswith('"'):
            return by_end.get(plain, 0)
        return max((n for path, n in by_end.items() if path.endswith('/' + plain)), default=0)

    wanted = sorted(((objects_reading(name), name) for name in included()), reverse=True)[:4 * top]
    options = flags(build)
    empty = alone('', options)
    rows = [(max(0.0, alone(name, options) - empty), n, name) for n, name in wanted if n > 0]
    return sorted(((seconds * n, seconds, n, name) for seconds, n, name in rows), reverse=True)[:top]


def measure():
    """A cold build of the command in a scratch folder: processor time by the kernel's account."""
    with tempfile.TemporaryDirectory(prefix='pipeshard-build-') as build:
        subprocess.run(['cmake', '-G', 'Ninja', '-S', ROOT, '-B', build, '-DCMAKE_BUILD_TYPE=Release',
                        '-DPIPESHARD_BUILD_TESTS=OFF', '-DPIPESHARD_BUILD_BENCHMARKS=OFF', '-Wno-dev'],
                       check=True, stdout=subprocess.DEVNULL)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(['ninja', '-C', build, 'pipeshard'], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, 'CCACHE_DISABLE': '1'})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        made = len(objects(build))
    print(f'{made} objects, {processor / 60:.1f} minutes of processor time, '
          f'{(time.monotonic() - start) / 60:.1f} by the clock')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', nargs='?', default=os.path.join(ROOT, 'build', 'release'))
    parser.add_argument('--top', type=int, default=20)
    parser.add_argument('--measure', action='store_true')
    arguments = parser.parse_args()
    if arguments.measure:
        measure()
        return
    if not os.path.exists(os.path.join(arguments.build, '.ninja_log')):
        sys.exit(f'error: {arguments.build} has no build; run tools/quickstart.sh, or name another folder')
    made = objects(arguments.build)
    print(f'{len(made)} objects, {sum(seconds for seconds, _ in made):.0f} s together\n')
    for seconds, name in made[:arguments.top]:
        print(f'{seconds:7.1f} s  {name}')
    print('\nheaders: seconds alone x objects that read it')
    for total, seconds, n, name in headers(os.path.abspath(arguments.build), arguments.top):
        print(f'{total:7.1f} s  {seconds:5.2f} x {n:4}  {name}')


if __name__ == '__main__':
    main()
