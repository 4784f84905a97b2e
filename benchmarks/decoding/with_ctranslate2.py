"""Translate with CTranslate2 and the model of `tfm export`, from pieces to pieces."""

import json
from collections.abc import Sequence

import ctranslate2
from timing import Sentence, measure, read_settings

_COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def main() -> None:
    """Run the benchmark."""
    settings = read_settings(__doc__)
    translator = ctranslate2.Translator(
        str(settings.setup / "ctranslate2"),
        device=settings.device,
        compute_type=_COMPUTE_TYPES[settings.precision],
        inter_threads=settings.processes,
        intra_threads=settings.threads,
    )
    pieces: list[str] = json.loads((settings.setup / "pieces.json").read_text())
    ids = {piece: index for index, piece in enumerate(pieces)}

    def translate(sentences: Sequence[Sentence]) -> list[list[int]]:
        results = translator.translate_batch(
            [each.pieces for each in sentences],
            beam_size=settings.beam_size,
            length_penalty=settings.length_penalty,
            max_decoding_length=settings.max_length,
            min_decoding_length=1,
            max_batch_size=settings.batch_size,
            batch_type=settings.batch_type,
            disable_unk=True,
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    measure(settings, translate, version=f"CTranslate2 {ctranslate2.__version__}")


if __name__ == "__main__":
    main()
