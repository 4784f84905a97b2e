"""tfm import of models that fairseq 0.12.2 itself has trained; its environment needs a network."""

import math
import os
import subprocess
from pathlib import Path
from shutil import copy

import pytest
import sentencepiece
from environments import environment
from foreign_models import PAIRS, segmenter
from sacremoses import MosesTokenizer

from tfm.commands.import_model import import_model
from tfm.commands.translator import Translator

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SPLITS = {"train": PAIRS[:110], "valid": PAIRS[110:120], "test": PAIRS[120:]}
STACKS = ("encoder", "decoder")
SIZES = {"embed-dim": 32, "ffn-embed-dim": 48, "attention-heads": 4, "layers": 2}
TRAINING = (
    "--arch transformer --optimizer adam --lr 0.005 --max-tokens 1000 --max-update 80 --cpu "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --no-epoch-checkpoints"
)
# A fused kernel of an older torch, which fairseq leaves out with this setting, has other arguments.
GENERATION = "--gen-subset test --cpu --batch-size 1 --scoring chrf --max-len-a 1 --max-len-b 19"
UNFUSED = ("--model-overrides", "{'checkpoint_activations': True}")
PRE_NORM = "--encoder-normalize-before --decoder-normalize-before"
LEARNED = "--encoder-learned-pos --decoder-learned-pos --max-target-positions 64"
# {name: (pieces, flags of preprocess, flags of train)}
VARIANTS = {
    "post-norm": ("unigram", "--joined-dictionary", "--share-all-embeddings"),
    "pre-norm": ("bpe", "--joined-dictionary", f"--activation-fn gelu {PRE_NORM}"),
    "two dictionaries": ("two", "", f"--share-decoder-input-output-embed {PRE_NORM}"),
    "learned positions": ("moses", "--joined-dictionary", f"--share-all-embeddings {LEARNED}"),
    "unknown words": ("moses", "--thresholdsrc 9 --thresholdtgt 9", "--no-scale-embedding"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    try:
        found = environment("fairseq", tmp_path_factory.mktemp("envs"))
    except SystemExit as error:
        pytest.skip(str(error))
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([found, *pip, "subword-nmt==0.3.8"], check=True)
    return found


@pytest.fixture(scope="module")
def fairseq(python):
    """Runs a command of fairseq, and returns what it prints."""
    [source] = python.parents[1].glob("fairseq-0.12.2")
    paths = [source, HERE.parents[2] / "benchmarks" / "training"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}

    def run(*command):
        program = [python, HERE / "run_fairseq.py", *map(str, command)]
        done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def tokenizers(folder, kind, python):
    """Return functions that split source and target text into pieces, whose models are written."""
    sides = [[pair[side] for pair in SPLITS["train"]] for side in (0, 1)]
    if kind != "moses":
        model_type = "bpe" if kind == "two" else kind
        texts = {"en.model": sides[0], "de.model": sides[1]}
        texts = texts if kind == "two" else {"sentencepiece.bpe.model": sides[0] + sides[1]}
        models = []
        for name, text in texts.items():
            (folder / name).write_bytes(segmenter(text, model_type=model_type))
            models.append(sentencepiece.SentencePieceProcessor(model_file=str(folder / name)))
        return [
            lambda lines, model=model: [" ".join(model.EncodeAsPieces(line)) for line in lines]
            for model in (models[0], models[-1])
        ]

    def subword_nmt(command, lines, *flags):
        code = "from subword_nmt.subword_nmt import main; main()"
        program = [python, "-c", code, command, *flags]
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(program, input=text, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    moses = [MosesTokenizer(language) for language in ("en", "de")]
    codes = folder / "codes"
    words = [
        side.tokenize(line, return_str=True)
        for side, text in zip(moses, sides, strict=True)
        for line in text
    ]
    codes.write_text("\n".join(subword_nmt("learn-bpe", words, "-s", "60")), encoding="utf-8")
    return [
        lambda lines, side=side: subword_nmt(
            "apply-bpe", [side.tokenize(line, return_str=True) for line in lines], "-c", codes
        )
        for side in moses
    ]


def outputs(text):
    """Return the scores, in nats per token, and the tokens of fairseq's translations, in order."""
    lines = [line[2:].split("\t") for line in text.splitlines() if line.startswith("H-")]
    rows = sorted((int(number), float(score), tokens) for number, score, tokens in lines)
    return [(score * math.log(2), tokens) for _, score, tokens in rows]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_of_fairseq_scores_and_translates_as_in_fairseq(fairseq, python, tmp_path, variant):
    kind, preprocessing, training = VARIANTS[variant]
    text, data, model = (tmp_path / name for name in ("text", "data", "model"))
    text.mkdir()
    splitters = tokenizers(text, kind, python)
    pieces = {}
    for name, pairs in SPLITS.items():
        for side, language in enumerate(("en", "de")):
            pieces[name, side] = splitters[side]([pair[side] for pair in pairs])
            content = "".join(f"{line}\n" for line in pieces[name, side])
            (text / f"{name}.{language}").write_text(content, encoding="utf-8")
    prefixes = (f"--{name}pref={text / name}" for name in SPLITS)
    fairseq(
        "preprocess", "-s", "en", "-t", "de", *prefixes, "--destdir", data, *preprocessing.split()
    )
    sizes = [f"--{stack}-{name}={size}" for stack in STACKS for name, size in SIZES.items()]
    fairseq("train", data, "--save-dir", model, *TRAINING.split(), *sizes, *training.split())
    for path in (*data.glob("dict.*.txt"), *text.glob("*.model")):
        copy(path, model)
    path = model / "checkpoint_best.pt"
    ours = Translator.load(
        import_model(path, source="en", target="de", out=tmp_path / "ours").out_dir,
        device="cpu",
        precision="fp32",
    )
    sources, targets = (
        pieces["test", side] if kind == "moses" else [pair[side] for pair in SPLITS["test"]]
        for side in (0, 1)
    )
    generate = ("generate", data, "--path", path, *GENERATION.split(), *UNFUSED)
    expected = outputs(fairseq(*generate, "--score-reference"))
    lengths = [len(line.split()) + 1 for line in pieces["test", 1]]
    totals = [score * length for (score, _), length in zip(expected, lengths, strict=True)]
    found = [each.log_prob for each in ours.score_targets(sources, targets)]
    assert found == pytest.approx(totals, abs=1e-3)
    for beam in (1, 4):
        flags = ("--beam", beam, "--unnormalized", "--unkpen", 1e4)
        expected = [tokens for _, tokens in outputs(fairseq(*generate, *flags))]
        if kind != "moses":
            expected = [line.replace(" ", "").replace("▁", " ") for line in expected]
            expected = [" ".join(line.split()) for line in expected]  # as tfm normalizes it
        settings = {"beam": beam, "length_penalty": 0.0, "max_extra_length": 20}
        assert ours.translate(sources, **settings) == expected
