"""Translator, the interface of the library."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers import edit_model
from small_models import transformer

from tfm.commands.translator import Translator
from tfm.config import SearchConfig
from tfm.disk.files import sha256_of
from tfm.disk.tensor_file import write_tensors
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.machine.compute import choose_compute
from tfm.search.hypotheses import Hypothesis
from tfm.translation import engine
from tfm.translation.engine import Engine

LINES = ["seven", "", "I am buying 3 red cars for $5.", "   ", "on Monday", "seven"]
SHORT = SearchConfig(max_extra_length=5)


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.load(trained_run, device="cpu")


def test_a_string_is_one_sentence(translator):
    assert translator.translate("seven", SHORT) == translator.translate(["seven"], SHORT)[0]
    assert translator.translate("", SHORT) == ""


def test_a_string_in_place_of_a_list_is_refused_where_results_are_lists(translator):
    for call in (
        lambda: translator.search("seven", SHORT),
        lambda: translator.search(["seven"], SHORT, prefixes="S"),
        lambda: translator.score_targets("seven", ["sieben"], SHORT),
    ):
        with pytest.raises(UsageError, match="but must be a list"):
            call()


@pytest.mark.parametrize("wrong", [5, b"x", [b"x"], [None], np.int64(1), {"a": 1}, ["a", 2]])
def test_what_is_no_text_is_named(translator, wrong):
    for name, call in (
        ("lines", lambda: translator.translate(wrong)),
        ("lines", lambda: translator.score_targets(wrong, ["a"])),
        ("targets", lambda: translator.score_targets(["a"], wrong)),
        ("prefixes", lambda: translator.search(["a"], prefixes=wrong)),
        ("first_line", lambda: translator.search(["a"], first_line=str(wrong))),
        ("config", lambda: translator.search(["a"], wrong)),
        ("path", lambda: Translator.load(wrong)),
    ):
        with pytest.raises(UsageError, match=rf"^{name}(\[.\])? is .*, but must be"):
            call()


def test_texts_may_be_an_array_or_a_generator(translator):
    expected = translator.translate(["seven", "two"], SHORT)
    for lines in (np.array(["seven", "two"]), ("seven", "two"), (x for x in ("seven", "two"))):
        assert translator.translate(lines, SHORT) == expected
    assert translator.search(["seven"], SHORT, first_line=np.int64(3))
    with pytest.raises(UsageError, match=r"^first_line is -1, but must be"):
        translator.search(["seven"], SHORT, first_line=-1)
    assert translator.translate([]) == translator.score_targets([], []) == []


def test_each_line_gets_one_translation_and_empty_ones_stay_empty(translator):
    found = translator.translate(LINES, SHORT)
    assert len(found) == len(LINES)
    assert (found[1], found[3]) == ("", "")
    assert found[0] == found[5] != ""
    assert not any("\n" in text for text in found)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert [t.text for t in one] == [t.text for t in other]
        assert [t.score for t in one] == pytest.approx([t.score for t in other], abs=1e-5)


def test_how_lines_are_batched_does_not_change_their_translations(translator):
    config = SearchConfig(max_extra_length=5, max_tokens=20)
    alone = [translator.search([line], SHORT)[0] for line in LINES]
    assert_same(translator.search(LINES, config), alone)


def test_a_model_folder_is_self_contained(translator, trained_run, tmp_path):
    moved = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "elsewhere")
    (moved / "training.safetensors").unlink()
    assert Translator.load(moved, device="cpu").translate(LINES, SHORT) == Translator.load(
        checkpoints(trained_run)[-1], device="cpu"
    ).translate(LINES, SHORT)


DIRTY = ["\ufeffon\tMonday", "on\xa0Monday ", "on Mon\xadday", "on Monday"]


def test_a_translator_needs_its_folder_only_to_load(translator, trained_run, tmp_path):
    path = shutil.copytree(ModelFolder.open(trained_run).path, tmp_path / "model")
    loaded = Translator.load(path, device="cpu", precision="fp32")
    shutil.rmtree(path)
    for each in (loaded, translator):
        each.found = (
            each.translate("see {x} cars"),
            each.translate_text("<p>seven <b>cars</b> {x}</p>", format="html"),
            each.search(["seven cars"], align=True),
        )
    assert loaded.found == translator.found


def test_text_is_normalized_as_the_training_text_was(translator, model_dir):
    found = translator.search(DIRTY, SHORT)
    assert found == [found[-1]] * 4
    scored = translator.score_targets(DIRTY, DIRTY)
    assert [target.text for target in scored] == ["on Monday"] * 4
    assert {target.pieces for target in scored} == {scored[-1].pieces}
    assert translator.translate(["\u200b\ufeff "]) == [""]
    edit_model(model_dir, normalization={"space": False, "unicode": True, "version": 2})
    scored = Translator.load(model_dir, device="cpu").score_targets(DIRTY, DIRTY)
    assert len({target.pieces for target in scored}) == 4


def test_several_models_form_an_ensemble(trained_run, translator):
    same = Translator.load(trained_run, trained_run, device="cpu")
    assert same.translate(LINES, SHORT) == translator.translate(LINES, SHORT)
    paths = checkpoints(trained_run)
    both = Translator.load(*paths[:2], device="cpu")
    found = both.search(["on Monday"], SHORT)
    for path in paths[:2]:
        alone = Translator.load(path, device="cpu").search(["on Monday"], SHORT)
        assert found[0][0].log_prob != alone[0][0].log_prob


@pytest.mark.parametrize("change", [{"source": "de", "target": "en"}, {"task": "parsing"}])
def test_models_of_other_languages_or_tasks_form_no_ensemble(trained_run, model_dir, change):
    edit_model(model_dir, **change)
    with pytest.raises(
        CheckpointError, match="trained for translation from en to de, but"
    ) as error:
        Translator.load(trained_run, model_dir, device="cpu")
    assert "\n" not in str(error.value)


def test_scored_targets_have_pieces_and_eos(translator):
    texts = ["am Montag", "", "Straße 🙂"]
    scored = translator.score_targets(["on Monday", "", "a street"], texts)
    for text, target in zip(texts, scored, strict=True):
        assert target.text == text
        assert target.pieces[-1] == "</s>"
        assert len(target.pieces) == len(target.piece_log_probs)
        assert sum(target.piece_log_probs) == pytest.approx(target.log_prob, abs=1e-4)
    assert "".join(scored[0].pieces[:-1]).replace("\u2581", " ").strip() == "am Montag"
    assert scored[1].pieces == ("</s>",)


def test_translations_start_with_their_prefixes(translator):
    config = SearchConfig(max_extra_length=5, n_best=2)
    prefixes = ["Ich", "", "\tzwei  Katzen ", "", "日本", "  "]
    lines = ["seven", "on Monday", "eight", "", "", "nine"]
    found = translator.search(lines, config, prefixes=prefixes)
    for best, prefix in zip(found[:5], prefixes, strict=False):
        forced = " ".join(prefix.split())
        assert all(translation.text.startswith(forced) for translation in best)
    assert [t.text for t in found[3]] == [""]
    free = translator.search(lines, config)
    for index in (1, 5):
        assert [t.text for t in found[index]] == [t.text for t in free[index]]


def test_each_line_needs_a_prefix_or_target(translator):
    with pytest.raises(DataError, match="there are 2 lines, but 1 prefixes: give one each"):
        translator.search(["a", "b"], prefixes=["c"])
    with pytest.raises(DataError, match="there are 1 lines, but 2 targets: give one each"):
        translator.score_targets(["a"], ["b", "c"])


def test_samples_depend_only_on_the_seed_and_the_line_number(translator):
    def drawn(lines, first_line=1, **config):
        settings = SearchConfig(search="sample", n_best=2, max_extra_length=5, **config)
        found = translator.search(lines, settings, first_line=first_line)
        return [[translation.text for translation in best] for best in found]

    together = drawn(LINES)
    assert drawn(LINES, max_tokens=20) == together
    for number, (line, expected) in enumerate(zip(LINES, together, strict=True), 1):
        assert drawn([line], first_line=number) == [expected]
    assert together[0] != together[5]  # the same text with another line number
    assert drawn(LINES, seed=2) != together


def test_search_settings_are_given_by_name_as_on_the_command_line(translator):
    expected = translator.search(LINES, SearchConfig(beam_size=3, n_best=2, max_extra_length=5))
    settings = {"n_best": 2, "max_extra_length": 5}
    assert translator.search(LINES, beam=3, **settings) == expected
    assert translator.search(LINES, beam_size=3, **settings) == expected
    assert translator.translate(LINES, beam=3, **settings) == [best[0].text for best in expected]
    assert translator.translate(LINES[0], beam=3, **settings) == expected[0][0].text
    config = SearchConfig(length_penalty=1.5)
    scored = translator.score_targets(["seven"], ["sieben"], config)
    assert translator.score_targets(["seven"], ["sieben"], length_penalty=1.5) == scored


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix": []}, "unknown setting 'prefix': did you mean prefixes?"),
        ({"beam": 0}, "beam_size (--beam) is 0, but must be at least 1"),
        (
            {"config": SHORT, "beam": 2},
            "a SearchConfig and settings by name exclude each other: give one",
        ),
        (
            {"config": SearchConfig(beam_size="2")},
            "beam_size in [search] is '2', but must be a whole number",
        ),
    ],
)
def test_wrong_search_settings_are_refused_in_one_line(translator, settings, message):
    with pytest.raises(UsageError) as caught:
        translator.translate(["seven"], **settings)
    assert str(caught.value) == message


def test_wrong_settings_of_a_model_are_refused(trained_run):
    with pytest.raises(UsageError, match="threads is 0, but must be at least 1"):
        Translator.load(trained_run, threads=0)


def test_a_model_brings_its_search_settings(model_dir):
    own = {"search": "sample", "temperature": 0.7, "max_extra_length": 3}
    edit_model(model_dir, search=own)
    translator = Translator.load(model_dir, device="cpu")
    assert translator.search(LINES) == translator.search(LINES, SearchConfig(**own))
    assert translator.search(LINES) != translator.search(LINES, SearchConfig(max_extra_length=3))
    assert translator.search(LINES, seed=5) == translator.search(LINES, SearchConfig(**own, seed=5))
    assert translator.search(LINES, search="beam") == translator.search(
        LINES, SearchConfig(max_extra_length=3)
    )


def test_text_beyond_the_learned_positions_is_refused(translator):
    models = [transformer(400, learned_positions=positions) for positions in (8, 20, None)]
    engine = Engine(models, choose_compute("cpu", "fp32"))
    short_translator = Translator.of(engine, translator.vocabulary)
    long = "six " * 9
    count = r"has \d+ tokens, but the model has learned positions for at most 7 and EOS: shorten it"
    with pytest.raises(
        DataError, match=f"^line 12 {count}, or set max_source_length to truncate it"
    ):
        short_translator.search(["six", long], first_line=11)
    with pytest.raises(DataError, match=f"^prefix 12 {count}$"):
        short_translator.search(["six", "six"], prefixes=["", long], first_line=11)
    with pytest.raises(DataError, match=f"^target 2 {count}$"):
        short_translator.score_targets(["six", "six"], ["", long])


def test_a_model_is_loaded_with_the_settings_of_the_command_line(trained_run):
    before = torch.get_num_threads()
    try:
        Translator.load(trained_run, device="cpu", precision="fp32")
        assert torch.get_num_threads() == before
        Translator.load(trained_run, device="cpu", kernels="plain", threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize(
    ("bytes_", "expected"),
    [(b"am\n\tMon\0tag\x1b", "am Montag"), (b"\n\r", ""), (b"a\xc2\xa0\xe2\x80\xa8c", "a c")],
)
def test_a_translation_is_one_line_without_control_characters(
    model_dir, monkeypatch, space, bytes_, expected
):
    edit_model(model_dir, normalization={"space": space, "unicode": True, "version": 2})
    translator = Translator.load(model_dir, device="cpu")
    tokens = [translator.vocabulary.target.byte_values.tolist().index(byte) for byte in bytes_]
    found = [Hypothesis(tokens=tuple(tokens), log_prob=-1.0, score=-1.0)]
    monkeypatch.setattr(engine, "search", lambda *_, **__: [found])
    [text] = translator.translate(["seven"], SearchConfig(search="sample"))
    assert text == expected if space else " ".join(text.split(" ")).split() == expected.split()
    assert text.splitlines() in ([], [text])


def test_targets_that_need_too_much_memory_are_refused(translator):
    with pytest.raises(
        DataError, match=r"^target 2 has \d+,\d+ tokens, but at most 4,096 are allowed: shorten it"
    ):
        translator.score_targets(["a", "b"], ["a", "x" * 100_000])
    with pytest.raises(DataError, match=r"^prefix 1 has \d+,\d+ tokens, but at most 4,096"):
        translator.search(["a"], prefixes=["x" * 100_000])


# --- too little memory


@pytest.fixture(
    params=[torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: …")],
    ids=["gpu", "cpu"],
)
def memory_for_two(request, monkeypatch):
    """Simulate a device with memory for the search of at most two sentences."""
    sizes = []

    def limited(in_full):
        def search(model, source, *rest, **settings):
            sizes.append(len(source))
            if len(source) > 2:
                raise request.param
            return in_full(model, source, *rest, **settings)

        return search

    monkeypatch.setattr(engine, "search", limited(engine.search))
    return sizes


def test_a_batch_that_does_not_fit_memory_is_translated_in_halves(
    translator, memory_for_two, monkeypatch, capsys
):
    lines = ["seven", "on Monday", "8", "nine", "ten"]
    found = translator.search(lines, SHORT) + translator.search(lines, SHORT)
    assert memory_for_two == 2 * [5, 3, 2, 1, 2]
    assert capsys.readouterr().err.count("a batch needs more memory than the device has") <= 1
    monkeypatch.undo()
    assert_same(found, 2 * translator.search(lines, SHORT))


def test_a_sentence_that_does_not_fit_memory_is_named(translator, monkeypatch):
    def search(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine, "search", search)
    with pytest.raises(DataError, match=r"^line 7 with \d source tokens needs more memory than"):
        translator.search(["", "seven"], SHORT, first_line=6)


def test_other_failures_are_not_treated_as_out_of_memory(translator, monkeypatch):
    def search(*_, **__):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(engine, "search", search)
    with pytest.raises(RuntimeError, match="shapes differ"):
        translator.search(["seven", "eight"], SHORT)


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.needs_bf16), "fp16"])
def test_half_precision_translates(trained_run, precision):
    found = Translator.load(trained_run, device="cpu", precision=precision).search(LINES, SHORT)
    exact = Translator.load(trained_run, device="cpu").search(LINES, SHORT)
    for one, other in zip(found, exact, strict=True):
        assert one[0].score == pytest.approx(other[0].score, rel=0.05, abs=0.05)


@pytest.fixture
def model_dir(trained_run, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "model")


def test_a_subword_model_of_another_run_is_refused(model_dir, tmp_path, make_dataset):
    pairs = [("a b c d", "d c b a")] * 20
    other = make_dataset(tmp_path / "other", {"train": pairs}, vocab_size=266)
    shutil.copy(other / "bpe.model", model_dir / "bpe.model")
    digests = {name: sha256_of(model_dir / name) for name in ("bpe.model", "model.safetensors")}
    edit_model(model_dir, sha256=digests)
    with pytest.raises(CheckpointError, match="was trained with subword model"):
        Translator.load(model_dir, device="cpu")


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({"num_encoder_layers": 20}, None),
        ({"d_ff": 64}, None),
        ({"num_decoder_layers": 1000}, "empty_model"),
    ],
    ids=str,
)
def test_a_model_of_other_sizes_than_its_file_is_refused(model_dir, monkeypatch, changes, before):
    run = json.loads((model_dir / "config.json").read_text())["run"]
    edit_model(model_dir, run={**run, "model": {**run["model"], **changes}})
    if before is not None:  # it is refused before it is built
        monkeypatch.delattr(f"tfm.model.build.{before}")
    with pytest.raises(CheckpointError, match=r"the weights do not fit config\.json"):
        Translator.load(model_dir, device="cpu")


@pytest.mark.parametrize("sizes", [[2**62, 400], [399, 400]])
def test_vocabulary_sizes_must_be_those_of_the_subword_models(model_dir, sizes):
    edit_model(model_dir, vocab_sizes=sizes)
    with pytest.raises(CheckpointError, match=r"has vocabularies of .* pieces, but the subword"):
        Translator.load(model_dir, device="cpu")


def test_weights_of_another_type_are_refused(model_dir):
    weights = {name: each.half() for name, each in ModelFolder(model_dir).weights().items()}
    path = model_dir / "model.safetensors"
    write_tensors(path.with_name("new"), weights)
    path.with_name("new").replace(path)
    digests = json.loads((model_dir / "config.json").read_text())["sha256"]
    edit_model(model_dir, sha256={**digests, path.name: sha256_of(path)})
    with pytest.raises(CheckpointError, match=r"the weights do not fit config\.json"):
        Translator.load(model_dir, device="cpu")


def test_dropout_is_off_after_loading(trained_run):
    [model] = Translator.load(trained_run, device="cpu").engine._models
    assert not any(module.training for module in model.modules())
    source, lengths = torch.tensor([[5, 6, 2]]), torch.tensor([3])
    with torch.inference_mode():
        assert torch.equal(*(model(source, lengths, source) for _ in range(2)))


def test_word_alignments_are_an_option_of_models_in_folders(translator):
    [[best]] = translator.search(["one two"], align=True)
    assert best.alignment is not None
    plain = Translator.of(translator.engine, translator.vocabulary)
    with pytest.raises(UsageError, match=r"align needs a translator of Translator\.load"):
        plain.search(["one two"], align=True)
