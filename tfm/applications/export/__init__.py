"""Exporting models to other programs."""

from typing import Literal

Format = Literal["ctranslate2", "huggingface", "onnx", "argos"]
# Type of the stored weights, and of the computation if the hardware supports it; "none" is float32.
Quantization = Literal[
    "none", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
]
