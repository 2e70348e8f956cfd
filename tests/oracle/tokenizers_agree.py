#!/usr/bin/env python3
"""`pipeshard tokens --tokenizer FILE.json` against Hugging Face's tokenizers.

    tokenizers_agree.py PIPESHARD [TOKENIZER.json ...]

Byte-level BPE tokenizers of several kinds are trained on a text (as GPT-2 has it, as Llama 3, as Qwen, with digits cut one by one, with a
space added in front, with special tokens that take spaces), written as tokenizer.json, and both encode texts: prose, code, many scripts,
runs of all kinds of white space, random characters. Every number must be the same. Further tokenizer.json files are tried likewise.
"""
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, trainers

TEXT = "/usr/share/common-licenses/GPL-3"
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def trained(pre_tokenizer, normalizer=None, special=("<|endoftext|>",), ignore_merges=False):
    tokenizer = Tokenizer(tokenizers.models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([TEXT], trainer)
    return tokenizer


def kinds():
    yield "gpt2", trained(byte_level())
    yield "llama3", trained(split(LLAMA), ignore_merges=True, special=("<|begin_of_text|>", "<|end|>", "<|end_of_text|>"))
    yield "qwen", trained(split(QWEN), normalizer=normalizers.NFC())
    yield "digits", trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]))
    yield "prefix", trained(byte_level(add_prefix_space=True))
    spacious = trained(byte_level(), special=("<s>", AddedToken("<mask>", lstrip=True, rstrip=True, special=True)))
    spacious.add_tokens([AddedToken("    ", normalized=True), AddedToken("GNU GPL", normalized=True)])
    yield "spacious", spacious


def texts():
    with open(TEXT, encoding="utf-8") as file:
        prose = file.read()
    with open(__file__, encoding="utf-8") as file:
        code = file.read()
    dice = random.Random(1)
    spaces = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff"
    ranges = [(32, 127), (0xA0, 0x250), (0x300, 0x330), (0x370, 0x400), (0x400, 0x460), (0x5D0, 0x5EA), (0x900, 0x930), (0x4E00, 0x4E80),
              (0xAC00, 0xAC80), (0x1100, 0x1180), (0x1F600, 0x1F640), (0x660, 0x66A), (0x2160, 0x2180), (0, 32)]
    special = ["<|endoftext|>", "<|end", "<|end|>", "<|end_of_text|>", "<mask>", "<s>", "'S", "'ll", "GNU GPL", "    ", "12345"]
    chaos = []
    for _ in range(20000):
        kind = dice.random()
        low, high = dice.choice(ranges)
        chaos.append(dice.choice(spaces) * dice.randint(1, 3) if kind < 0.25 else dice.choice(special) if kind < 0.3 else
                     "".join(chr(dice.randrange(low, high)) for _ in range(dice.randint(1, 6))))
    yield "prose", prose
    yield "code", code
    yield "scripts", "Žluťoučký kůň. 北京大学 한국어 مرحبا ٣٤٥ नमस्ते 👩‍👩‍👧 e\u0301 ≯ ² ½ Ⅻ it's WE'LL don't\n"
    yield "chaos", "".join(chaos)
    yield "runs", " " * 3000 + "a" * 3000 + "\n" * 3000 + "=" * 3000 + "ab" * 2000 + "1" * 2000 + " x"
    yield "ends in spaces", "one two  "


def compare(pipeshard, folder, name, tokenizer, text):
    path, output = os.path.join(folder, "text.txt"), os.path.join(folder, "tokens.u32")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    done = subprocess.run([pipeshard, "tokens", path, "--tokenizer", os.path.join(folder, name + ".json"), "-o", output],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip()
    got, want = np.fromfile(output, dtype="<u4").tolist(), tokenizer.encode(text, add_special_tokens=False).ids
    if got == want:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    pieces = [[tokenizer.id_to_token(number) for number in ids[max(0, at - 2):at + 4]] for ids in (got, want)]
    return f"{len(got)} and {len(want)} tokens; from token {at} on {pieces[0]} instead of {pieces[1]}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    pipeshard, *files = sys.argv[1:]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cases = list(kinds()) + [(os.path.basename(path).removesuffix(".json") + "_given", Tokenizer.from_file(path)) for path in files]
        for name, tokenizer in cases:
            tokenizer.save(os.path.join(folder, name + ".json"))
            for what, text in texts():
                fault = compare(pipeshard, folder, name, tokenizer, text)
                failed = failed or bool(fault)
                if fault:
                    print(f"FAIL: {name}, {what}: {fault}")
            print(f"{name}: {tokenizer.get_vocab_size()} tokens, {sum(1 for _ in texts())} texts")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
