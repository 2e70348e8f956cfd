"""A kind's file of a plan directory, its loops written out (docs/plans.md). Written apart from the reader in ir/program, to agree with it."""

import copy
import json
import re

LAST_NUMBER = re.compile(r"^(.*@)(\d+)((?:[^@]|@(?!\d))*)$")


def step_buffer(buffer, steps):
    found = LAST_NUMBER.match(buffer["name"])
    if found:
        buffer["name"] = f"{found[1]}{int(found[2]) + steps[0]}{found[3]}"


def step_microbatch(item, steps):
    if "microbatch" in item:
        item["microbatch"] += steps.pop(0)


def step_instruction(instruction, steps):
    steps = list(steps)
    step_microbatch(instruction, steps)
    if "offset" in instruction or steps[0] != 0:
        instruction["offset"] = instruction.get("offset", 0) + steps[0]
    del steps[0]
    for key in ("inputs", "outputs"):
        buffers = instruction.get(key, [])
        instruction[key] = [buffer + step for buffer, step in zip(buffers, steps)]
        del steps[:len(buffers)]
    assert not steps, f"more steps than numbers: {instruction}"


def step_result(result, steps):
    steps = list(steps)
    step_microbatch(result, steps)
    result["buffer"] += steps[0]


def unrolled(items, step):
    written = []
    for item in items:
        if "repeat" not in item:
            written.append(item)
            continue
        body = copy.deepcopy(item["body"])
        for iteration in range(item["repeat"]):
            if iteration > 0:
                for part, steps in zip(body, item["steps"], strict=True):
                    step(part, steps)
            written += copy.deepcopy(body)
    return written


def read_kind(path):
    """The kind as a rank's program.json has it: every list in full, but for `starts`, which is left as it is."""
    kind = json.loads(path.read_text())
    for key, step in (("buffers", step_buffer), ("instructions", step_instruction), ("results", step_result)):
        kind[key] = unrolled(kind.get(key, []), step)
    return kind
