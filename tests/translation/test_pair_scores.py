"""prepare --min-score: pairs that an existing model finds improbable are dropped."""

import json

import pytest
from helpers import number_pairs, write_pairs

from tfm.commands.generate import plan_generation
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import UsageError
from tfm.text.corpus.loading import recipe_from_files
from tfm.translation.generating import generate_lines
from tfm.translation.pair_scores import PairScorer

PAIRS = [*number_pairs("train", num_pairs=40, seed=2), ("seven", "Katze " * 20)]


@pytest.fixture
def files(tmp_path):
    return write_pairs(tmp_path, "train", PAIRS)


@pytest.fixture
def prepare_files(files, tmp_path):
    def run(languages=None, **cleaning):
        out = tmp_path / "data"
        recipe = recipe_from_files(name=out.name, train=[files], languages=languages)
        keep = {"drop_duplicates": False, "drop_copies": False, "max_length_ratio": 0.0}
        result = prepare(recipe, out, overrides={"cleaning": {**keep, **cleaning}}, text_only=True)
        return result.is_new, (out / "train.de").read_text(encoding="utf-8").splitlines()

    return run


@pytest.mark.parametrize("chunk_bytes", [1, 1_000, 1 << 22])
def test_pairs_are_kept_by_the_scores_that_generate_prints(
    trained_run, files, prepare_files, chunk_bytes, monkeypatch
):
    monkeypatch.setattr("tfm.text.lines._CHUNK_BYTES", chunk_bytes)
    plan = plan_generation([trained_run], input_path=files[0], targets=files[1])
    inference = InferenceConfig(device="cpu")
    found = generate_lines(plan, SearchConfig(), inference=inference)
    scored = [each for _, [each] in found]
    means = [each.log_prob / len(each.pieces) for each in scored]
    minimum = sum(sorted(means)[20:22]) / 2  # 21 pairs have less
    _, kept = prepare_files(score_model=str(trained_run), min_score=minimum)
    expected = [each.text for each, mean in zip(scored, means, strict=True) if mean > minimum]
    assert kept == [text.strip() for text in expected]
    assert len(kept) == 20


def test_text_is_scored_again_if_the_model_changes(trained_run, prepare_files, tmp_path):
    cleaning = {"score_model": str(trained_run), "min_score": -1000.0}
    is_new, kept = prepare_files(**cleaning)
    assert (is_new, len(kept)) == (True, len(PAIRS))
    assert not prepare_files(**cleaning)[0]
    manifest = tmp_path / "data" / "manifest.json"
    record = json.loads(manifest.read_text())
    record["steps"]["clean"]["inputs"]["score_models"] = {str(trained_run): "another"}
    manifest.write_text(json.dumps(record))
    assert prepare_files(**cleaning)[0]


def test_a_model_of_other_languages_is_refused_before_anything_is_written(
    trained_run, prepare_files, tmp_path
):
    with pytest.raises(UsageError, match=r"from en to de, but the text is from en to de\+fr"):
        prepare_files(languages=("en", "de+fr"), score_model=str(trained_run), min_score=-5.0)
    assert not (tmp_path / "data").exists()


def test_a_model_that_does_not_exist_is_refused(prepare_files, tmp_path):
    with pytest.raises(UsageError, match=r"nothing"):
        prepare_files(score_model=str(tmp_path / "nothing"), min_score=-5.0)


def test_a_tag_that_the_model_does_not_know_is_left_out(trained_run):
    scorer = PairScorer(trained_run, source="en", target="de")
    pairs = [(source.encode(), target.encode()) for source, target in PAIRS[:5]]
    assert scorer.for_text("<bt>")(pairs) == scorer.for_text()(pairs)
