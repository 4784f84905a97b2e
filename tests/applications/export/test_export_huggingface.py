"""tfm export --format huggingface: transformers computes the same model from the same text."""

import io
import json
import random
import shutil

import pytest
import sentencepiece
import torch
from helpers import number_pairs

from tfm.commands.export import export
from tfm.commands.import_model import import_model
from tfm.commands.translator import Translator
from tfm.config import LATEST_NORMALIZATION, Normalization, run_config
from tfm.errors import DataError, TfmError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK, SubwordModel, Vocabulary

pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from tfm.applications.export import huggingface  # noqa: E402 - needs tokenizers
from tfm.applications.export.huggingface import check_supported, new_tokenizer  # noqa: E402

LINES = ["seven", "I am buying 3 red cars for $5.", "on Monday", "twelve past noon 🙂"]
TARGETS = ["sieben", "acht Autos kosten viel Geld, 🙂", "am Montag", ""]
SHAPES = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "two-way tied": {"tied_embeddings": "two-way", "joint": True},
    "untied": {"tied_embeddings": "none", "joint": True},
    "gelu": {"activation": "gelu", "norm": "pre"},
    "silu": {"activation": "silu"},
    "output bias": {"output_bias": True},
    "output bias, pre-norm": {"output_bias": True, "norm": "pre"},
    "deeper decoder": {"num_encoder_layers": 1, "num_decoder_layers": 3},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def load(folder):
    return (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )


@EVERY_SHAPE
def test_both_compute_the_same_token_probabilities_also_after_saving_again(
    make_model, tmp_path, shape
):
    path = make_model(**shape)
    model, tokenizer = load(export(path, format="huggingface").out_dir)
    ours = Translator.load(path, device="cpu", precision="fp32").score_targets(LINES, TARGETS)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "again")
    for loaded, encode in ((model, tokenizer), load(tmp_path / "again")):
        batch = encode(LINES, text_target=TARGETS, return_tensors="pt", padding=True)
        inputs = torch.cat([torch.full((len(LINES), 1), BOS), batch["labels"][:, :-1]], dim=1)
        batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            logits = loaded(**batch, decoder_input_ids=inputs).logits.log_softmax(-1)
        labels = encode(TARGETS)["input_ids"]
        for our, token_ids, found in zip(ours, labels, logits, strict=True):
            theirs = found[torch.arange(len(token_ids)), token_ids]
            assert theirs.tolist() == pytest.approx(our.piece_log_probs, abs=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_both_find_the_same_translations_without_a_length_penalty(trained_norms, tmp_path, norm):
    agreement = export(
        trained_norms[norm], format="huggingface", out=tmp_path / "out", check=12
    ).agreement
    assert (agreement.num_lines, agreement.differences, agreement.beam_size) == (12, [], 4)
    assert agreement.program == "transformers"
    assert 0 < agreement.max_error < 1e-4


def test_generation_has_the_settings_of_the_model_and_no_forced_tokens(make_model):
    model, tokenizer = load(export(make_model(), format="huggingface").out_dir)
    config = model.generation_config
    assert (config.num_beams, config.length_penalty, config.max_length) == (4, 0.4, 1076)
    assert config.forced_eos_token_id is config.forced_bos_token_id is None
    assert model.config.forced_eos_token_id is None
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    found = model.generate(**batch, max_length=9)
    assert found[:, 0].tolist() == [BOS] * len(LINES)
    assert not {PAD, BOS, UNK} & set(found[:, 1:].flatten().tolist())
    assert (found[:, 1] != EOS).all()


# --- the way back


@EVERY_SHAPE
def test_an_import_of_an_export_is_the_same_model_bit_by_bit(make_model, tmp_path, shape):
    path = make_model(**shape)
    before = ModelFolder(path)
    exported = export(path, format="huggingface").out_dir
    after = ModelFolder(import_model(exported, out=tmp_path / "back").out_dir)
    weights = before.model().state_dict()
    assert after.model().state_dict().keys() == weights.keys()
    for name, weight in after.model().state_dict().items():
        assert torch.equal(weight, weights[name])
    assert after.vocabulary.files() == before.vocabulary.files()
    assert after.info.portable == before.info.portable
    assert after.info.run.model == before.info.run.model


def test_a_model_that_transformers_saves_again_is_imported_with_its_subword_model(
    trained_norms, tmp_path
):
    for norm, path in trained_norms.items():
        exported = export(path, format="huggingface", out=tmp_path / norm / "out").out_dir
        for part in load(exported):
            part.save_pretrained(tmp_path / norm / "again")
        with pytest.raises(DataError, match=r"bpe\.model is missing: copy it"):
            import_model(tmp_path / norm / "again", out=tmp_path / norm / "back")
        shutil.copy(exported / "bpe.model", tmp_path / norm / "again")
        back = import_model(tmp_path / norm / "again", out=tmp_path / norm / "back").out_dir
        ours, theirs = (Translator.load(each, device="cpu").search(LINES) for each in (path, back))
        assert ours == theirs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tfm": None}, "Pegasus model that tfm export did not write"),
        ({"tfm": {"target": "de"}}, "source is missing"),
        ({"encoder_ffn_dim": 5}, "ffn_dim that differ"),
    ],
)
def test_other_pegasus_models_and_damaged_exports_are_refused(
    make_model, tmp_path, changes, message
):
    exported = export(make_model(norm="pre"), format="huggingface").out_dir
    values = json.loads((exported / "config.json").read_text()) | changes
    kept = {name: value for name, value in values.items() if value is not None}
    (exported / "config.json").write_text(json.dumps(kept))
    with pytest.raises(TfmError, match=message):
        import_model(exported, out=tmp_path / "back")
    assert not (tmp_path / "back").exists()


# --- the tokenizer


def odd_strings(pieces, number, *names):
    """Strings of pieces, odd spaces, invisible, special and random characters, and repetitions."""
    rng = random.Random(1)
    pieces = [piece.replace("\u2581", " ") for piece in pieces]
    choices = (
        pieces,
        "\t\n\v\f\r\x1c\x1f \x85\xa0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000",
        "\x00\x07\x1b\x7f\x92\x9d\x9f\xad\u061c\u200b\u200c\u200d\u200e\u202e\u2060\u2063\u3164\ufeff",
        "\u2581\u2585\ufdd0\ufdd1\ufffe\ufffdĠéﬁ①Ａ½\u0308\u0323\u1100\u1161\U000e0001\U000e0067",
        (
            "<s>",
            "</s>",
            "<pad>",
            "<unk>",
            "<0x41>",
            "\ufdd00",
            "\ufdd01",
            "\ufdd03",
            "e\u0301",
            *names,
        ),
        [chr(rng.randrange(0x20, 0xD800)) for _ in range(500)],
        [chr(rng.randrange(0xE000, 0x110000)) for _ in range(500)],
        [rng.choice(pieces).strip()[: rng.randrange(1, 4)] * 7 for _ in range(500)],
    )
    for _ in range(number):
        kinds = rng.choices(choices, weights=(3, 1, 1, 1, 1, 1, 1, 1), k=rng.randrange(25))
        yield "".join(rng.choice(kind) for kind in kinds)


@pytest.mark.parametrize(
    ("number", "normalization", "subword"),
    [
        (10_000, LATEST_NORMALIZATION, {}),
        (1_000, Normalization(space=False), {"symbols": "<2fr> <bt>"}),
        (1_000, LATEST_NORMALIZATION, {"symbols": "<2fr> <bt>", "byte_fallback": False}),
    ],
    ids=["cleaned", "tags", "unknown characters"],
)
def test_both_tokenizers_agree_on_odd_strings(
    make_dataset, data_dir, tmp_path, number, normalization, subword
):
    if subword:
        pairs = list(number_pairs("train", num_pairs=200, seed=1))
        splits = {"train": pairs, "valid": pairs[:3], "test": pairs[:3]}
        data_dir = make_dataset(tmp_path / "data", splits, vocab_size=400, **subword)
    vocabulary = Vocabulary.load(data_dir, normalization)
    new_tokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        eos_token="</s>",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    pieces = vocabulary.source.pieces(range(4, len(vocabulary.source)))
    strings = list(odd_strings(pieces, number, "<2fr>", " <2fr> ", "<bt>"))
    expected = vocabulary.source.encode(vocabulary.clean(strings))
    found = tokenizer(strings)["input_ids"]
    assert found == [[*token_ids, EOS] for token_ids in expected]
    known = [token_ids for token_ids in expected if UNK not in token_ids]
    assert len(known) > number / 20
    assert tokenizer.batch_decode(known) == vocabulary.source.decode(known)


def test_a_subword_model_that_normalizes_unicode_is_refused(data_dir, tmp_path):
    model = io.BytesIO()
    lines = [
        f"{source} {target} ﬁ" for source, target in number_pairs("train", num_pairs=99, seed=1)
    ]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        unk_id=UNK,
        minloglevel=2,
    )
    subwords = SubwordModel(model.getvalue(), origin=tmp_path)
    with pytest.raises(UsageError, match=r"a tokenizer\.json cannot express this subword model"):
        new_tokenizer(Vocabulary(subwords, subwords))


def test_a_tokenizer_that_joins_letters_of_two_pieces_too_early_is_refused(data_dir, monkeypatch):
    in_order = huggingface._merges
    wrong = ("e", "r")
    monkeypatch.setattr(
        huggingface, "_merges", lambda pieces: sorted(in_order(pieces), key=lambda p: p != wrong)
    )
    with pytest.raises(UsageError, match=r"it encodes '.+' differently"):
        new_tokenizer(Vocabulary.load(data_dir))


# --- the folder


def test_the_command_says_how_to_publish_the_folder(make_model, tmp_path, run):
    out_dir = tmp_path / "out"
    code, out, err = run("export", make_model(), "--format", "huggingface", "--out", out_dir)
    assert (code, out) == (0, f"{out_dir}\n")
    assert f"hf upload USER/NAME {out_dir}\n" in err


# --- refusals


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"d_k": 3}, "d_k and d_v other than d_model / num_heads"),
        ({"d_v": 9, "norm": "pre"}, "d_k and d_v other than"),
        ({"attention_window": 5, "attention": "additive"}, "additive, attention_window 5:"),
        ({"learned_positions": 60}, r"learned_positions \(theirs are sinusoids\)"),
        ({"tied_embeddings": "two-way", "norm": "pre", "joint": True}, "two-way with norm pre"),
        ({"tied_embeddings": "two-way"}, r"separate vocabularies \(a tokenizer.json holds one\)"),
        ({"task": "parsing"}, "task parsing"),
    ],
)
def test_what_cannot_be_expressed_is_refused(make_model, tmp_path, changes, missing):
    model = make_model(**changes)
    with pytest.raises(UsageError, match=rf"cannot express .*{missing}"):
        export(model, format="huggingface")
    assert list(tmp_path.iterdir()) == [model]


def test_other_architectures_and_subword_models_are_refused(make_model, make_dataset, tmp_path):
    info = ModelFolder(make_model()).info
    pairs = list(number_pairs("train", num_pairs=200, seed=1))
    splits = {"train": pairs, "valid": pairs[:3], "test": pairs[:3]}
    data_dir = make_dataset(tmp_path / "data", splits, vocab_size=350, model_type="unigram")
    object.__setattr__(info.run, "model", run_config("rnn", {}, {}).model)
    with pytest.raises(UsageError, match="arch rnn, a subword model other than BPE"):
        check_supported(info, Vocabulary.load(data_dir))
