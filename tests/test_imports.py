"""What starts without the libraries that take seconds to import."""

import pytest
from helpers import python
from small_models import new_info

from tfm.folders.run_folder import checkpoint_path
from tfm.folders.saving import save_checkpoint

HEAVY = "torch numpy sentencepiece sacrebleu matplotlib safetensors"
MODULES = "tfm, tfm.dataset.clean_text, tfm.dataset.checks, tfm.commands.score"
MODULES += (
    ", tfm.training.run_summaries, tfm.training.model_summaries, tfm.applications.doctor.checks"
)
PREPARING = """
import shutil
from tfm import average, prepare, score, train
prepare('numbers-en-de', out='data', text_only=True)
shutil.copy('data/test.de', 'out.de')
score('out.de', 'data/test.de')
"""
SCORING = """
from tfm.config import ScoreConfig
from tfm.metrics.scores import corpus_scores
corpus_scores(['a'], [['a']], ['bleu', 'chrf', 'ter', 'exact'], ScoreConfig())
"""
LISTING = """
from tfm.cli.app import app
import tfm.cli.main
sys.argv = ['tfm', '%s', 'runs']
app(standalone_mode=False)
"""
WORK = {
    "modules": (f"import {MODULES}", "torch"),
    "command line": ("import tfm.cli.main", HEAVY),
    "generate": ("import tfm.translation.generating", "sacrebleu"),
    "preparing and scoring": (PREPARING, "torch"),
    "BLEU in training": (SCORING, "torch sacremoses"),
    "runs": (LISTING % "runs", "torch"),
    "models": (LISTING % "models", "torch"),
}


@pytest.mark.parametrize(("code", "heavy"), WORK.values(), ids=WORK)
def test_work_is_done_without_libraries_that_it_does_not_need(elsewhere, code, heavy):
    path = checkpoint_path(elsewhere / "runs" / "a", 1)
    save_checkpoint(path, new_info(), {}, subword_files={"bpe.model": b"subword"})
    done = python("-c", f"import sys\n{code}\nprint('loaded:', *sys.modules, file=sys.stderr)")
    loaded = done.stderr.rpartition("loaded: ")[2].split()
    assert done.returncode == 0, done.stderr
    assert not set(heavy.split()) & set(loaded)
    assert "tfm" in loaded
