"""The steps around a search: their order, and what asks for them."""

from dataclasses import replace

import pytest

from tfm.commands.translator import Translator
from tfm.config import SearchConfig
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.model_info import Calibration
from tfm.steps import ModelSteps, StepsConfig

TEXTS, ALIGNED = StepsConfig(document=True), StepsConfig(align=True)


def names(steps):
    return [type(step).__name__ for step in steps]


def test_candidates_are_chosen_first_and_documents_joined_last(trained_run):
    folder = ModelFolder.open(trained_run)
    calibration = Calibration(num_lines=1, log_probs=(-1.0,), qualities=(0.5,))
    info = replace(folder.info, calibration=calibration)
    search = SearchConfig(n_best=4, mbr="chrf")
    model = ModelSteps(info=info, folder=folder)
    found = names(model.around(search, TEXTS))
    chosen = ["MinimumBayesRisk", "Confidence", "Repetition", "Protect"]
    assert found[::-1] == [*chosen, "Sentences"]
    assert names(model.around(search, ALIGNED))[::-1] == [*chosen, "Align"]
    given = names(model.around(SearchConfig(), ALIGNED, scores_given=True))
    assert given == ["Align"]
    model = ModelSteps(info=None)
    assert names(model.around(search)) == ["Protect", "Repetition", "MinimumBayesRisk"]
    plain = StepsConfig(no_protect=True)
    assert names(model.around(search, plain)) == ["Repetition", "MinimumBayesRisk"]


def test_translator_takes_no_settings_of_whole_texts(trained_run):
    translator = Translator.load(trained_run, device="cpu")
    with pytest.raises(UsageError, match="unknown setting 'document'"):
        translator.translate("seven", document=True)
