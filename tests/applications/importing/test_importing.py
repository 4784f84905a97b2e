"""tfm import: the imported model computes what the original program does."""

import argparse
import json
import math
import pickle
import shutil
import sys
from collections import OrderedDict
from itertools import chain
from pathlib import Path

import pytest
import torch
from foreign_models import PAIRS, new_fairseq, new_marian, scores_of, unused_copies
from safetensors.torch import load_file, save_file

from tfm.applications.importing.fairseq import load_pickle
from tfm.cli import main as cli
from tfm.commands.import_model import import_model
from tfm.commands.models import models
from tfm.commands.train import TrainingPlan, train_model
from tfm.commands.translator import Translator
from tfm.errors import CheckpointError, DataError, TfmError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.vocabulary.subword import BOS, EOS, PAD, Vocabulary

pytest.importorskip("transformers")

LINES, TARGETS = map(list, zip(*PAIRS[:12], strict=True))


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # imports go to models/ there


def weights_in(folder):
    return (folder / "model.safetensors").read_bytes()


def log_probs(folder, lines=LINES, **options):
    ours = Translator.load(folder, device="cpu", precision="fp32")
    return [each.log_prob for each in ours.score_targets(lines, TARGETS, **options)]


def marian_ids(folder, lines=LINES):
    from transformers import MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(folder)
    sources = [ids[:-1] for ids in tokenizer(lines)["input_ids"]]
    return sources, [ids[:-1] for ids in tokenizer(text_target=TARGETS)["input_ids"]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    new_marian(folder / "marian")
    return import_model(folder / "marian", out=folder / "ours").out_dir


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "bpe"},
        {"activation_function": "relu", "tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"scale_embedding": False},
        {"num_missing": 20},
        {"num_missing": 20, "model_type": "bpe"},
    ],
    ids=str,
)
def test_an_imported_marian_model_gives_targets_the_same_probability(tmp_path, changes):
    model = new_marian(tmp_path / "marian", **changes)
    result = import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert result.languages == ("en", "de")
    sides = marian_ids(tmp_path / "marian")
    has_unknown = [any(1 in ids for ids in side) for side in sides]
    assert has_unknown == ["num_missing" in changes] * 2
    found = log_probs(tmp_path / "ours")
    assert found == pytest.approx(scores_of(model, *sides), abs=2e-3)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_all_pieces_of_a_vocabulary_with_two_segmentations_are_decoded(tmp_path, model_type):
    from transformers import MarianTokenizer

    new_marian(tmp_path / "marian", model_type=model_type)
    import_model(tmp_path / "marian", out=tmp_path / "ours")
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "marian")
    target = Vocabulary.load(tmp_path / "ours").target
    pieces = target.pieces(range(4, len(target)))
    ids = tokenizer.convert_tokens_to_ids(pieces)
    assert tokenizer.unk_token_id not in ids
    parts = [range(start, start + 9) for start in range(0, len(ids), 9)]
    expected = [tokenizer.decode([ids[i] for i in part if i < len(ids)]) for part in parts]
    found = target.decode([4 + i for i in part if i < len(ids)] for part in parts)
    assert [text.strip() for text in found] == expected


def test_names_of_special_pieces_in_text_are_text(imported):
    lines = ["Hello </s> world <pad>", "<pad>", "</s>", "<unk><s>"]
    for model in (vocabulary := Vocabulary.load(imported)).source, vocabulary.target:
        assert not {PAD, BOS, EOS}.intersection(chain(*model.encode(lines)))


INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(imported, tmp_path):
    """A folder of transformers with three files of weights."""
    folder = shutil.copytree(imported.with_name("marian"), tmp_path / "sharded")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number in range(3):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        part = {each: weights[each] for each in sorted(weights)[number::3]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_old_and_several_files_of_weights_are_read(imported, sharded, tmp_path):
    folder = shutil.copytree(imported.with_name("marian"), tmp_path / "marian")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert import_model(folder).out_dir == Path("models/marian")
    assert weights_in(Path("models/marian")) == weights_in(imported)
    assert [each.kind for each in models()] == ["imported"]
    assert weights_in(import_model(sharded).out_dir) == weights_in(imported)
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        import_model(sharded, out=tmp_path / "ours")


@pytest.mark.parametrize(
    "weight_map",
    [{}, [], None, {"a": 1}, {"a": "../whole"}, {"a": "/etc/x.safetensors"}, {"a": ["x"]}],
    ids=str,
)
def test_an_index_without_names_of_files_beside_it_is_refused(sharded, weight_map):
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="names no files of weights"):
        import_model(sharded)
    (sharded / INDEX).write_text("[")
    with pytest.raises(DataError, match="is damaged"):
        import_model(sharded)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stored_positions_must_be_the_sinusoids_of_marian(imported, tmp_path, stack):
    folder = shutil.copytree(imported.with_name("marian"), tmp_path / "marian")
    weights = load_file(folder / "model.safetensors")
    angles = torch.arange(50)[:, None] * 10_000 ** (-torch.arange(8) / 8)
    table = torch.cat([angles.sin(), angles.cos()], dim=1)

    def import_with(positions):
        named = {f"model.{stack}.embed_positions.weight": positions}
        save_file(weights | named, folder / "model.safetensors")
        return import_model(folder, out=tmp_path / "ours", force=True).out_dir

    assert weights_in(import_with(table.half())) == weights_in(imported)
    other = table.clone()
    other[3, 5] += 2e-3
    for wrong in (other, table[:, :8].contiguous(), torch.tensor(0.5)):
        with pytest.raises(UsageError, match="has positions other than Marian's"):
            import_with(wrong)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """A model with two target languages, and the folder of transformers."""
    folder = tmp_path_factory.mktemp("tagged")
    model = new_marian(folder / "marian", tags=[">>fra<<", ">>cmn_Hans<<"])
    return model, import_model(folder / "marian", out=folder / "ours").out_dir


@pytest.mark.parametrize("space", [" ", "", "  \t"])
def test_tags_choose_the_language_as_in_transformers(tagged, space):
    model, folder = tagged
    info = ModelFolder(folder).info
    assert (info.target, info.tags) == ("fra+cmn_Hans", (">>fra<<", ">>cmn_Hans<<"))
    ours = Translator.load(folder, device="cpu", precision="fp32")
    for tag in info.tags:
        lines = [f"{tag}{space}{line}" for line in LINES]
        expected = scores_of(model, *marian_ids(folder.with_name("marian"), lines))
        found = log_probs(folder, lines)
        assert found == pytest.approx(expected, abs=2e-3)
        assert log_probs(folder, tag=tag) == found
    with pytest.raises(UsageError, match=r"has no tag, .* >>fra<<, >>cmn_Hans<<, or give --tag"):
        ours.translate(LINES[0])


def test_target_languages_need_their_tags(tagged, tmp_path):
    original = tagged[1].with_name("marian")
    result = import_model(original, out=tmp_path / "one", target="fr")
    assert result.languages == ("en", "fr")
    with pytest.raises(UsageError, match=r"a tag only for fra, cmn_Hans, not for deu"):
        import_model(original, out=tmp_path / "two", target="fra+deu")


def test_characters_that_the_segmentation_does_not_know_are_looked_up(tmp_path):
    new_marian(tmp_path / "marian", tags=["⁂", "⁂⁂"])
    import_model(tmp_path / "marian", out=tmp_path / "ours")
    for model in (vocabulary := Vocabulary.load(tmp_path / "ours")).source, vocabulary.target:
        [pieces] = map(model.pieces, model.encode(["⁂ ⁂⁂"]))
        assert pieces == ["▁", "⁂", "▁", "⁂⁂"]


def test_an_imported_model_is_adapted(imported, make_dataset, tiny_run, tmp_path):
    """Its two segmentations share one vocabulary, which no dataset could train from scratch."""
    from dataclasses import replace

    from tfm.config import adapting_table, run_config

    splits = {"train": PAIRS[:60], "valid": PAIRS[60:66]}
    data = make_dataset(tmp_path / "data", splits, subwords=(str(imported),))
    settings = {"max_steps": 4, "checkpoint_steps": 2, "average": False, "device": "cpu"}
    batching = {"batch_tokens": 600, "bucket_tokens": 100}
    start = run_config(
        None,
        adapting_table(ModelFolder(imported).info.run),
        {"training": {**settings, "max_epochs": None}, "batching": batching},
    )
    result = train_model(data, tmp_path / "run", replace(start, from_model=str(imported)))
    assert result.step == 4
    info = ModelFolder(tmp_path / "run" / "checkpoints" / "step-00000004").info
    assert [ancestor.path for ancestor in info.ancestors][-1] == str(imported)
    assert len(info.ancestors) == 2
    assert info.run.model.output_bias
    # Its batches are those of a small model, and the name of its run is its own.
    assert run_config(None, adapting_table(ModelFolder(imported).info.run)).batching == (
        run_config("tiny").batching
    )
    plan = TrainingPlan(from_model=imported)
    assert plan.run_dir(data, plan.merged(data)).name == f"data-{imported.name}-adapted"


# --- fairseq


@pytest.mark.parametrize(
    ("norm", "scale", "tokens"),
    [("post", True, False), ("post", False, True), ("pre", True, True), ("pre", False, False)],
)
def test_an_imported_fairseq_model_gives_targets_the_same_probability(
    tmp_path, norm, scale, tokens
):
    model = new_fairseq(
        tmp_path / "fairseq", norm=norm, tokens=tokens, no_scale_embedding=not scale
    )
    result = import_model(tmp_path / "fairseq", out=tmp_path / "ours")
    assert (result.takes_tokens, result.max_positions) == (tokens, 64)
    lines = (tmp_path / "fairseq" / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    ids = {line.rpartition(" ")[0]: number for number, line in enumerate(lines, start=4)}
    vocabulary = Vocabulary.load(tmp_path / "ours")
    assert vocabulary.is_joint
    texts = [vocabulary.source.pieces(each) for each in vocabulary.source.encode(LINES + TARGETS)]
    their_ids = [[ids[piece[1:] if tokens else piece] for piece in text] for text in texts]
    expected = scores_of(model, their_ids[: len(LINES)], their_ids[len(LINES) :])
    assert log_probs(tmp_path / "ours") == pytest.approx(expected, abs=2e-3)
    ours = Translator.load(tmp_path / "ours", device="cpu", precision="fp32")
    assert all(not text.startswith("▁") for text in ours.translate(LINES[:2], beam=1))


def test_the_sections_of_a_checkpoint_of_version_0_12_are_read(tmp_path):
    new_fairseq(tmp_path / "old")
    state = torch.load(tmp_path / "old" / "checkpoint.pt", weights_only=False)
    names = {"source_lang", "target_lang"}
    settings = {name: each for name, each in vars(state["args"]).items() if name not in names}
    meter = (10, "loss", "AverageMeter", {"val": torch.tensor(5.9), "count": 3, "round": 3})
    start = {"epoch": 7, "iterations_in_epoch": 20, "shuffle": True}
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    torch.save(
        {
            "args": None,
            "cfg": {
                "_name": None,
                "common": {"seed": 1, "fp16": False},
                "model": argparse.Namespace(**settings, source_lang=None, no_save=False),
                "task": {"_name": "translation", "source_lang": "en", "target_lang": "de"},
                "bpe": None,
            },
            "model": state["model"],
            "criterion": None,
            "optimizer_history": [{"lr_scheduler_state": {"best": 5.4}, "num_updates": 500}],
            "task_state": {},
            "extra_state": {"metrics": OrderedDict(default=[meter]), "train_iterator": start},
            "last_optimizer_state": {"state": {0: {"step": 5}}, "param_groups": [{"lr": 0.1}]},
        },
        tmp_path / "new" / "checkpoint.pt",
    )
    results = [
        import_model(tmp_path / "new"),  # whose section of the model names no language
        import_model(tmp_path / "old"),
    ]
    assert [each.languages for each in results] == [("en", "de")] * 2
    assert weights_in(results[0].out_dir) == weights_in(results[1].out_dir)


def test_names_of_older_versions_are_read(tmp_path):
    new_fairseq(tmp_path / "new")
    state = dict(load_pickle(tmp_path / "new" / "checkpoint.pt"))
    renamed, copies = {}, [*unused_copies("encoder.layers.0."), *unused_copies("encoder.layers.1.")]
    numbers = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    for name, weight in state["model"].items():
        if name in copies:
            continue
        stack, kind = name.split(".")[0], name.split(".")[-2]
        if "layers" in name and kind in numbers[stack]:
            name = name.replace(kind, f"layer_norms.{numbers[stack].index(kind)}")
        renamed[name] = weight
    for name in [name for name in renamed if ".q_proj." in name]:
        parts = [renamed.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"]
        renamed[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    args = argparse.Namespace(**vars(state["args"]))
    torch.save({"args": args, "model": renamed}, tmp_path / "old" / "checkpoint.pt")
    new, other = (import_model(tmp_path / name).out_dir for name in ("new", "old"))
    assert weights_in(new) == weights_in(other)


def test_copies_that_fairseq_replaces_when_it_loads_them_are_not_read(tmp_path):
    copies = [f"encoder.layers.{layer}.fc1_weight" for layer in (0, 1)]
    new_fairseq(tmp_path / "new")
    new_fairseq(tmp_path / "resumed", changes=dict.fromkeys(copies, torch.ones(24, 16)))
    new, other = (import_model(tmp_path / name).out_dir for name in ("new", "resumed"))
    assert weights_in(new) == weights_in(other)


# --- code in pickles


class Canary:
    """Unpickling it would write a file."""

    def __init__(self, path, function):
        self._path, self._function = path, function

    def __reduce__(self):
        if self._function == "eval":
            return eval, (f"open({str(self._path)!r}, 'w').close()",)
        import os

        return os.system, (f"touch '{self._path}'",)


@pytest.mark.parametrize("function", ["eval", "system"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_names_code_is_refused_and_runs_nothing(tmp_path, function, legacy):
    canary = tmp_path / "canary"
    new_fairseq(tmp_path / "model")
    path = tmp_path / "model" / "checkpoint.pt"
    state = {"args": Canary(canary, function), "model": {}}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=rf"code to run \((posix\.)?{function}\)") as refused:
        import_model(tmp_path / "model")
    assert "weights_only" not in str(refused.value)  # torch's message says how to run the code
    assert not canary.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]
    pickle.loads(pickle.dumps(state["args"]))  # the canary sings where nobody refuses
    assert canary.exists()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"not a pickle", b"PK\x03\x04", pickle.dumps([1])),
        *(b"\x80\x02}r\x01", b"\x80\x02K\x01Q."),  # a number cut off; no persistent id
    ],
)
def test_a_damaged_checkpoint_is_one_line(tmp_path, content):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt"):
        import_model(tmp_path / "checkpoint.pt", out=tmp_path / "out")


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory):
    """A folder of fairseq, whose checkpoint a test replaces, and the content of it."""
    folder = tmp_path_factory.mktemp("fairseq") / "model"
    new_fairseq(folder)
    return folder, torch.load(folder / "checkpoint.pt", weights_only=False)


@pytest.fixture
def import_changed(fairseq, tmp_path):
    """Import a checkpoint with other settings, weights or keys."""
    folder, state = fairseq

    def run(settings=None, weights=None, **changes):
        args = argparse.Namespace(**(vars(state["args"]) | (settings or {})))
        model = state["model"] | (weights or {})
        torch.save({**state, "args": args, "model": model, **changes}, folder / "checkpoint.pt")
        return import_model(folder / "checkpoint.pt", out=tmp_path / "ours")

    return run


WEIGHT, BIAS = "encoder.layers.0.fc2.weight", "decoder.layers.0.fc1.bias"


@pytest.mark.parametrize(
    "value",
    [
        *(torch.full((16, 24), number) for number in (math.nan, math.inf, -math.inf)),
        torch.full((16, 24), 1e300, dtype=torch.float64),
        torch.ones(16, 24).to_sparse(),
        torch.ones(16, 24, dtype=torch.int64),
        torch.ones(16, 24, dtype=torch.complex64),
        torch.ones(16, 24, device="meta"),
        torch.ones(1).expand(1 << 40, 24),
        *(torch.ones(shape) for shape in ((), (16,), (24, 16), (0, 24), (16, 24, 1), (17, 24))),
        *(None, 1.5, "x", [1.0], {"a": 1}),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'shape', value)}",
)
@pytest.mark.parametrize("name", [WEIGHT, BIAS, "decoder.output_projection.weight"])
def test_weights_that_are_no_finite_numbers_of_the_right_shape_are_refused(
    import_changed, tmp_path, name, value
):
    with pytest.raises((CheckpointError, DataError)):
        import_changed(weights={name: value})
    assert not (tmp_path / "ours").exists()


def test_weights_in_other_precisions_are_imported(import_changed, fairseq):
    weights = {name: each.to(torch.bfloat16) for name, each in fairseq[1]["model"].items()}
    found = ModelFolder(import_changed(weights=weights).out_dir).weights()
    assert {each.dtype for each in found.values()} == {torch.float32}


@pytest.mark.parametrize(
    "change",
    [
        *({"settings": {"source_lang": each}} for each in (["en"], "../en", "a\0", 7, "")),
        *(
            {"settings": {f"{side}_embed_dim": each for side in ("encoder", "decoder")}}
            for each in (-16, 0, 17, 1 << 62, 1 << 70, math.inf, math.nan, "16", True, [16], None)
        ),
        *({"settings": {"encoder_layers": each}} for each in (-1, 1 << 40, "2", 2.0, math.nan)),
        *(
            {"settings": {"max_source_positions": each}}
            for each in (-5, 1 << 40, 1 << 63, (1, 2), "x", math.inf, {"a": 1})
        ),
        *({"settings": {"dropout": each}} for each in (-1.0, 2.0, math.nan, "x", [0.1])),
        *({"settings": {"activation_fn": each}} for each in ({}, [], None, 7)),
        {"settings": {"dropout": torch.ones(3)}},
        *({"weights": {each: torch.ones(3)}} for each in (7, None, ("a", "b"), b"x")),
        *({"model": each} for each in ({}, None, [], torch.ones(3), {"x": {}})),
        *({"args": None, "cfg": each} for each in (None, 7, [], {"model": 7}, {"task": {}})),
    ],
    ids=str,
)
def test_settings_and_names_of_other_kinds_are_refused(import_changed, tmp_path, change):
    with pytest.raises(TfmError) as refused:
        import_changed(**change)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ours").exists()


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoder_ffn_embed_dim": 48}, "encoder_ffn_embed_dim 48 with decoder_ffn_embed_dim 24"),
        ({"no_token_positional_embeddings": True}, "tfm has no no_token_positional_embeddings"),
        ({"activation_fn": "gelu_fast"}, "tfm has no activation_fn .gelu_fast"),
        ({"encoder_layers": 1}, "weights without a counterpart in tfm, such as encoder.layers.1"),
        ({"encoder_layers": 3}, r"has no weight encoder.layers.2.self_attn.q_proj.weight"),
        ({"source_lang": None}, "names no languages: give --source and --target"),
        ({"changes": {"encoder.layers.2.fc1_weight": torch.zeros(24, 16)}}, "encoder.*fc1_weight"),
        ({"changes": {"decoder.layers.0.fc1_weight": torch.zeros(24, 16)}}, "decoder.*fc1_weight"),
        ({"changes": {"decoder.layers.0.fc1.bias": torch.zeros(3)}}, "weights of other shapes"),
        (
            {"changes": {"encoder.layernorm_embedding.weight": torch.ones(16)}},
            "layernorm_embedding",
        ),
    ],
)
def test_what_tfm_lacks_is_refused_by_name(tmp_path, arguments, message):
    new_fairseq(tmp_path / "fairseq", **arguments)
    with pytest.raises(TfmError, match=message):
        import_model(tmp_path / "fairseq", out=tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu_new"}, "tfm has no activation_function .gelu_new"),
        ({"decoder_start_token_id": 100_000}, "does not fit config.json"),
        ({"encoder_attention_heads": 3}, "attention_heads that differ"),
    ],
)
def test_settings_that_tfm_lacks_are_refused(tmp_path, changes, message):
    new_marian(tmp_path / "marian")
    path = tmp_path / "marian" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TfmError, match=message):
        import_model(tmp_path / "marian", out=tmp_path / "ours")


@pytest.mark.parametrize("number", [-1, 7, 10_000, 1.5, "2", None])
def test_ids_of_a_vocabulary_that_are_no_permutation_are_refused(tmp_path, number):
    new_marian(tmp_path / "marian")
    path = tmp_path / "marian" / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**ids, list(ids)[20]: number}), encoding="utf-8")
    with pytest.raises(DataError, match=r"vocabulary in .*marian does not fit config\.json"):
        import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("name", ["source.spm", "vocab.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    new_marian(tmp_path / "marian")
    (tmp_path / "marian" / name).unlink()
    with pytest.raises((DataError, CheckpointError), match=name):
        import_model(tmp_path / "marian", out=tmp_path / "ours")


def test_only_an_earlier_import_is_replaced(imported, tmp_path):
    original = imported.with_name("marian")
    with pytest.raises(UsageError, match="exists: replace it with --force"):
        import_model(original, out=imported)
    with pytest.raises(UsageError, match="is no model folder"):
        import_model(original, out=original, force=True)
    (imported / "alignment.json").touch()  # the heads of the earlier import
    import_model(original, out=imported, force=True)
    assert not (imported / "alignment.json").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UsageError, match=r"neither a Marian model .* model_type marian.* nor one of fairseq"
    ):
        import_model(tmp_path / "empty")


def test_a_checkpoint_and_files_of_others_are_not_replaced(imported, trained_run, tmp_path):
    original = imported.with_name("marian")
    run = shutil.copytree(trained_run, tmp_path / "run")
    for path in checkpoints(run):
        with pytest.raises(UsageError, match="is no model folder"):
            import_model(original, out=path, force=True)
    (imported / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt is not of the model folder"):
        import_model(original, out=imported, force=True)
    assert (imported / "notes.txt").read_text() == "mine"


def test_the_command_prints_the_folder(imported, tmp_path, monkeypatch, capfd):
    arguments = ["tfm", "import", str(imported.with_name("marian")), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capfd.readouterr()
    assert (stopped.value.code, out) == (0, f"{tmp_path / 'out'}\n")
    assert "en to de" in err
    assert err.endswith(f"next: tfm generate {tmp_path / 'out'} --input -\n")
