"""The inputs of the step "clean" in manifest.json: all that determines the text of a dataset."""

from typing import Any

from tfm.config import Table


def of_first_rules(inputs: Table) -> dict[str, Any]:
    """Return inputs as they were recorded before the rules of normalization had versions."""
    cleaning = {k: v for k, v in inputs["cleaning"].items() if k != "normalize_unicode"}
    return {k: v for k, v in inputs.items() if k != "normalization"} | {"cleaning": cleaning}


def of_training_text(inputs: Table) -> list[Any]:
    """Return those inputs of the step "clean" that determine the training text."""
    texts = inputs.get("texts", {}).get("train", [])
    sides = [str(value) for text in texts for value in text.values()]
    no_options: list[Table] = [{}] * len(texts)
    return [
        texts,
        {side: inputs.get("contents", {}).get(side) for side in sides},
        [file for file in inputs.get("downloads", []) if file["url"].endswith(tuple(sides))],
        (inputs.get("options") or no_options)[: len(texts)],
        inputs.get("cleaning"),
        inputs.get("normalization"),
        inputs.get("score_models"),
    ]
