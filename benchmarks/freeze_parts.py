"""Observe the help, data, training and decoding of a version of tfm."""

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

from freeze_version import Version

Observed = dict[str, Any]

PRESETS = ("base", "big", "small", "tiny", "student", "rnn", "parser", "quickstart")
# A line of `tfm --help` that begins with a command.
COMMAND = re.compile(r"^  ([a-z][a-z-]*)  ", re.MULTILINE)

TRAININGS = [(arch, precision) for precision in ("fp32", "bf16") for arch in ("tiny", "small")]
TRAINING_FLAGS = "--log-steps 1 --batch-tokens 500 --bucket-tokens 500 --average-last 2"
NUM_STEPS, NUM_STEPS_WITHOUT_BF16 = 50, 10
# The keys of metrics.jsonl that do not depend on time.
METRICS = (
    *("kind", "step", "epoch", "loss", "smoothed_loss", "perplexity", "gradient_norm"),
    *("learning_rate", "tokens", "skipped_steps", "score"),
)

# Keys of records that contain times, or hashes of files with times.
VARYING = {"modified", "checksum", "training.safetensors"}

# Differences of the decodings in ALLOWED are only listed.
ALLOWED = ("bf16 beam", "int8 beam")
DECODINGS = {
    "beam 1": "--precision fp32 --beam 1",
    "beam 4": "--precision fp32 --beam 4",
    "beam 4, plain layers": "--precision fp32 --beam 4 --kernels plain",
    "beam 4, alignment": "--precision fp32 --beam 4 --align",
    "diverse beam": "--precision fp32 --beam 4 --num-groups 2 --n-best 4",
    "exact search": "--precision fp32 --search exact --node-limit 100",
    "sampling": "--precision fp32 --search sample --top-p 0.9 --n-best 2 --seed 3",
    "sampling, MBR": "--precision fp32 --search sample --n-best 8 --mbr chrf",
    "scores of references": "--precision fp32 --score-target test.de",
    "bf16 beam 4": "--precision bf16 --beam 4",
    "int8 beam 4": "--precision int8 --beam 4",
}

WORDS = {
    "çocuk": "孩子", "köpek": "狗", "İstanbul": "伊斯坦布尔", "ışık": "光", "göl": "湖",
    "yağmur": "雨", "küçük": "小", "büyük": "大", "ağaç": "树", "üzüm": "葡萄", "Iğdır": "伊迪尔",
}  # fmt: skip
# Pairs that cleaning changes or drops, and characters that programs treat differently.
ODD_PAIRS = [
    ("👩‍👩‍👧 ev 🇹🇷", "👩‍👩‍👧 家 🇨🇳"), ("", "空"), ("aynı metin", "aynı metin"),
    ("gÃ¼zel ev", "漂亮的房子"), ("I\u0307stanbul c\u0327ok", "伊斯坦布尔"), ("12 ev", "13 家"),
    ("a\u00a0b\u200bc\u00add", "甲\u3000乙"), ("\u0093ev\u0094", "“家”"), ("x\u2028y", "某"),
    ("çok " * 300, "很"), ("\ufeffev", "家\ufeff"), ("ﬁl Ⅷ ½", "象 Ⅷ ½"), ("𝔘𝔫𝔦", "𠀀𠀁"),
    ("\tev  ev\t", " 家 "),
]  # fmt: skip
RECIPE = """
name = "own"
source = "tr"
target = "zh"
train = [{ source = "own.tr", target = "own.zh", except_every = 20 },
         { source = "own.tr", target = "own.zh", every = 3, tag = "<odd>" }]
valid = [{ source = "own.tr", target = "own.zh", every = 20 }]
cleaning = { drop_mojibake = true, drop_unequal_numbers = true, shard_pairs = 500 }
subword = { vocab_size = 500, symbols = "<2zh>" }
"""
MULTI30K = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def help_texts(version: Version) -> Observed:
    """Observe the help of each command, the settings of each preset, and the reference pages."""
    commands = COMMAND.findall(version.succeed("--help")["out"])
    helps = [[command, flag] for command in commands for flag in ("--help", "--help-all")]
    presets = [["train", "--arch", arch, "--print-config"] for arch in PRESETS]
    reference = version.source / "docs" / "reference"
    return {" ".join(call): version.observe(*call) for call in [["--help"], *helps, *presets]} | {
        str(page.relative_to(reference)): page.read_text(encoding="utf-8")
        for page in sorted(reference.rglob("*.md"))
    }


def data(version: Version) -> Observed:
    """Observe the text, subword models and token ids of two or three datasets."""
    _write_own_text(version.work)
    calls: dict[str, list[str]] = {"numbers": ["numbers-en-de"], "own": ["own.toml"]}
    if version.multi30k:
        calls["multi30k"] = ["--vocab-size", "4000"]
        for split, stem in MULTI30K.items():
            stem_path = version.multi30k.absolute() / stem
            calls["multi30k"] += [f"--{split}", f"{stem_path}.en", f"{stem_path}.de"]
    return {
        name: {
            "command": version.succeed("prepare", *call, "--out", f"data/{name}", "--threads", "1"),
            "files": _files(version.work / "data" / name),
        }
        for name, call in calls.items()
    }


def training(version: Version) -> Observed:
    """Observe losses, gradient norms, weights and settings of short trainings."""
    version.numbers()
    observed = {}
    for arch, precision in TRAININGS:
        is_fast = precision == "fp32" or "bf16" in Path("/proc/cpuinfo").read_text()
        num_steps = NUM_STEPS if is_fast else NUM_STEPS_WITHOUT_BF16
        steps = f"--max-steps {num_steps} --checkpoint-steps {num_steps // 2}"
        run = f"runs/{arch}-{precision}"
        flags = f"--arch {arch} --precision {precision} {steps} {TRAINING_FLAGS}".split()
        version.succeed("train", "numbers", "--run", run, *flags)
        observed[f"{arch} {precision}"] = {
            "metrics": _metrics(version.work / run / "metrics.jsonl"),
            "files": _files(version.work / run),
        }
    return observed


def decoding(version: Version) -> Observed:
    """Observe translations and scores by the model that both versions share."""
    folder, observed = version.work / "decoding", {}
    folder.mkdir()
    for name in ("test.en", "test.de"):
        lines = (version.numbers() / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines[: version.num_lines]))
    command: list[str | Path] = ["generate", version.model, "--input", "test.en", "--json"]
    for name, flags in DECODINGS.items():
        output = version.succeed(*command, *flags.split(), folder=folder)["out"]
        observed[name] = [json.loads(line) for line in output.splitlines()]
    return observed


def _write_own_text(folder: Path) -> None:
    """Write text in Turkish and Chinese with odd lines, and a recipe of it."""
    generator, pairs = random.Random(1), []
    for number in range(2000):
        words = generator.choices(list(WORDS), k=generator.randint(2, 12))
        target = "".join(WORDS[word] for word in words)
        pairs.append((f"{' '.join(words)} {number % 50}.", f"{target} {number % 50}。"))
        if number % 20 == 0:
            pairs.append(ODD_PAIRS[number // 20 % len(ODD_PAIRS)])
    for side, language in enumerate(("tr", "zh")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"own.{language}").write_text(text, encoding="utf-8")
    (folder / "own.toml").write_text(RECIPE)


def _metrics(path: Path) -> list[Observed]:
    lines = map(json.loads, path.read_text().splitlines())
    return [{key: line.get(key) for key in METRICS} for line in lines]


def _files(folder: Path) -> Observed:
    """Return the settings in files, and hashes of the other files and of tensors."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _content(path) for path in paths}


def _content(path: Path) -> Any:
    match path.suffix:
        case ".json":
            return json.loads(path.read_bytes(), object_hook=_without_varying)
        case ".toml":
            return path.read_text(encoding="utf-8")
        case ".safetensors":
            return _tensors(path.read_bytes())
        case ".html" | ".jsonl":  # with times
            return "exists"
    return _hash(path.read_bytes())


def _without_varying(table: Observed) -> Observed:
    return {key: value for key, value in table.items() if key not in VARYING}


def _tensors(content: bytes) -> Observed:
    """Return types, shapes and hashes of the tensors in a safetensors file."""
    start = 8 + int.from_bytes(content[:8], "little")
    tensors: Observed = json.loads(content[8:start])
    tensors.pop("__metadata__", None)
    for tensor in tensors.values():
        begin, end = tensor.pop("data_offsets")
        tensor["hash"] = _hash(content[start + begin : start + end])
    return tensors


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
