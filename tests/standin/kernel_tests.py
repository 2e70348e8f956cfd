"""The tests of the CUDA kernels, run on the stand-in; for dropped_barriers.py and dropped_guards.py."""
import os

from reported_run import run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class KernelTests:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        standin = os.path.join(build, "tests", "standin")
        self.environment = dict(
            os.environ, LD_LIBRARY_PATH=standin,
            STANDIN_TWINS=os.path.join(standin, "libstandin_twin.so"),
            PIPESHARD_CUDA_MODULE=os.path.join(build, "tools", "pipeshard_cuda.so"))

    def run(self, environment, program="cuda_kernels_test", until=None):
        """What was reported. `environment`: more of it. `until`: as run's."""
        command = [os.path.join(self.build, "tests", "runtime", program)]
        code, reports = run(command, dict(self.environment, **environment), os.path.join(self.folder, "log"), until)
        if code not in (0, 1, None) and not reports:
            raise SystemExit("%s ended with code %d" % (program, code))
        if until is None and (code != 0 or reports):
            raise SystemExit("code %s with nothing left out: %s" % (code, reports[:3]))
        return reports


def spread(items, count):
    """So many of them, evenly."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
