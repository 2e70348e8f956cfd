"""A program on the stand-in, run until something is reported; for the scripts that leave one thing out."""
import os
import subprocess
import time


def four_gpus(build):
    """The environment in which a build's command finds the stand-in with four GPUs, and room for one kernel of NCCL."""
    standin = os.path.join(build, "tests", "standin")
    return dict(
        os.environ, LD_LIBRARY_PATH=standin, STANDIN_TWINS=os.path.join(standin, "libstandin_twin.so"),
        PIPESHARD_CUDA_MODULE=os.path.join(build, "tools", "pipeshard_cuda.so"), PIPESHARD_PROFILE="off",
        STANDIN_DEVICES="4", STANDIN_NCCL_RESIDENT="1")


def reports_of(log):
    with open(log, errors="replace") as file:
        return [line.strip() for line in file if line.startswith("stand-in: ")]


def run(command, environment, log, until=None, seconds=600):
    """The exit code, and what STANDIN_LOG has. It ends with the first report that `until` accepts, or after so long:
    no code. What it has started must end with it."""
    open(log, "w").close()
    process = subprocess.Popen(command, env=dict(environment, STANDIN_LOG=log), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > end or (until and any(map(until, reports_of(log)))):
            process.kill()
            process.wait()
            return None, reports_of(log)
        time.sleep(0.02)
    return process.returncode, reports_of(log)
