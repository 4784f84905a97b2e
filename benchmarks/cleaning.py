"""Mix noise of known kinds into parallel text, and count what each cleaning rule finds of it.

    python benchmarks/cleaning.py --text multi30k --model runs/multi30k-en-de-tiny

The folder of the text has train.en, train.de and, as text in a wrong language, train.fr.
"""

import argparse
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import tfm
from tfm.data.cleaning import normalize_space

KINDS = ("swapped sides", "French target", "shifted line", "mojibake", "changed number")
NUM_NOISY_PAIRS = 3_000
RULES = {
    "the rules that are on by default": {},
    "drop_mojibake": {"drop_mojibake": True},
    "drop_other_script": {"drop_other_script": True},
    "drop_unequal_numbers": {"drop_unequal_numbers": True},
    "drop_other_language": {"drop_other_language": True},
    "drop_other_language, sides of any length": {
        "drop_other_language": True,
        "min_identified_characters": 0,
    },
    "max_length_deviations 2": {"max_length_deviations": 2.0},
    "max_length_deviations 3": {"max_length_deviations": 3.0},
    "max_punctuation_deviations 3": {"max_punctuation_deviations": 3.0},
    "mojibake, numbers, language": {
        "drop_mojibake": True,
        "drop_unequal_numbers": True,
        "drop_other_language": True,
    },
}
MIN_SCORES = (-6.0, -5.0)

Pair = tuple[str, str]


def main() -> None:
    """Print a table with a row for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of train.en, .de and .fr")
    parser.add_argument("--model", type=Path, help="model or run folder for min_score")
    args = parser.parse_args()
    clean, noise = noisy_text(args.text)
    rules = dict(RULES)
    if args.model is not None:
        for score in MIN_SCORES:
            rules[f"min_score {score:g}"] = {"score_model": str(args.model), "min_score": score}
    sizes = {"good pairs": len(clean), **{kind: len(pairs) for kind, pairs in noise.items()}}
    print(f"| rule | {' | '.join(f'{kind} ({size:,})' for kind, size in sizes.items())} |")
    print("|---|" + "---|" * len(sizes))
    for name, settings in rules.items():
        kept = kept_pairs(clean, noise, settings)
        dropped = {"good pairs": clean, **noise}
        counts = [sum((Counter(map(stored, p)) - kept).values()) for p in dropped.values()]
        print(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |", flush=True)


def noisy_text(folder: Path) -> tuple[list[Pair], dict[str, list[Pair]]]:
    """Return the pairs that stay good, and the damaged ones by kind; no pair is in two of them."""
    english, german, french = (
        (folder / f"train.{language}").read_text(encoding="utf-8").split("\n")[:-1]
        for language in ("en", "de", "fr")
    )
    generator = random.Random(1)
    order = list(range(len(english)))
    generator.shuffle(order)
    damaged: dict[str, Callable[[int], str]] = {
        "changed number": lambda i: re.sub(
            r"\d+", lambda m: str(int(m[0]) + 1), german[i], count=1
        ),
        "mojibake": lambda i: as_windows_1252(german[i]),
        "French target": lambda i: french[i],
        "shifted line": lambda i: german[(i + 1) % len(german)],
        "swapped sides": lambda i: german[i],
    }
    noise: dict[str, list[Pair]] = {}
    for kind, damage in damaged.items():  # few pairs have numbers, so the others get more
        size = (NUM_NOISY_PAIRS - sum(map(len, noise.values()))) // (len(KINDS) - len(noise))
        chosen = [i for i in order if damage(i) != german[i] or kind == "swapped sides"][:size]
        order = sorted(set(order).difference(chosen), key=order.index)
        noise[kind] = [
            (german[i], english[i]) if kind == "swapped sides" else (english[i], damage(i))
            for i in chosen
        ]
    good = [(english[i], german[i]) for i in sorted(order)]
    return good, {kind: noise[kind] for kind in KINDS}


def as_windows_1252(text: str) -> str:
    """Decode the UTF-8 of a text as Windows-1252, and bytes without a character as Latin-1."""
    decoded = (bytes([byte]).decode("cp1252", errors="ignore") for byte in text.encode())
    return "".join(char or chr(byte) for char, byte in zip(decoded, text.encode(), strict=True))


def kept_pairs(clean: list[Pair], noise: dict[str, list[Pair]], settings: dict) -> Counter[Pair]:
    """Prepare all pairs in a random order, and return those that the rules keep."""
    pairs = [*clean, *(pair for damaged in noise.values() for pair in damaged)]
    random.Random(2).shuffle(pairs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"train.{language}").write_text(text, encoding="utf-8")
        paths = [folder / "train.en", folder / "train.de"]
        tfm.prepare(train=paths, out=folder / "data", text_only=True, **settings)
        sides = (
            (folder / "data" / path.name).read_text(encoding="utf-8").split("\n")[:-1]
            for path in paths
        )
        return Counter(zip(*sides, strict=True))


def stored(pair: Pair) -> Pair:
    """Return a pair as it is stored in a dataset."""
    return normalize_space(pair[0]), normalize_space(pair[1])


if __name__ == "__main__":
    main()
