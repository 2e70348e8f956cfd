"""The tests of the CUDA kernels, run on the stand-in; for dropped_barriers.py."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class KernelTests:
    def __init__(self, build, folder):
        self.program = os.path.join(build, "tests", "runtime", "cuda_kernels_test")
        self.folder = folder
        standin = os.path.join(build, "tests", "standin")
        self.environment = dict(
            os.environ, LD_LIBRARY_PATH=standin,
            STANDIN_TWINS=os.path.join(standin, "libstandin_twin.so"),
            PIPESHARD_CUDA_MODULE=os.path.join(build, "tools", "pipeshard_cuda.so"))

    def run(self, dropped=None):
        """The exit code, the barriers that were come to, and what was reported. `dropped`: a barrier that is
        left out."""
        files = {name: os.path.join(self.folder, name) for name in ("barriers", "log")}
        for name in files.values():
            open(name, "w").close()
        environment = dict(self.environment, STANDIN_BARRIERS=files["barriers"], STANDIN_LOG=files["log"])
        if dropped:
            environment["STANDIN_DROP_BARRIER"] = dropped
        code = subprocess.run([self.program], env=environment, timeout=600, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode
        with open(files["barriers"]) as barriers, open(files["log"]) as log:
            reports = [line.strip() for line in log if line.startswith("stand-in: ")]
            if code not in (0, 1) and not reports:
                raise SystemExit("%s ended with code %d" % (self.program, code))
            return code, barriers.read().split(), reports

    def run_whole(self):
        """With nothing left out: the barriers."""
        code, barriers, reports = self.run()
        if code != 0 or reports:
            raise SystemExit("code %s with nothing left out: %s" % (code, reports[:3]))
        return barriers


def spread(items, count):
    """So many of them, evenly."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
