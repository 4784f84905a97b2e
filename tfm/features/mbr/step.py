"""The step that chooses among the candidates of a search."""

from tfm.config import SearchConfig
from tfm.data.languages import bleu_tokenizer, target_language
from tfm.inference.steps import Step


def minimum_bayes_risk(config: SearchConfig, target: str) -> list[Step]:
    """Return the step for a search with a model for target languages; none without `mbr`."""
    if config.mbr is None:
        return []
    from tfm.features.mbr.utility import MinimumBayesRisk  # here, because it loads sacreBLEU

    return [
        MinimumBayesRisk(
            utility=config.mbr,
            are_samples=config.search == "sample",
            tokenizer=bleu_tokenizer(target_language(target, config.tag)),
        )
    ]
