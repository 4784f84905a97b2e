"""tfm export: model folder → a folder that CTranslate2 translates with."""

from tfm.stages.export.check import Agreement, Difference
from tfm.stages.export.folder import ExportResult, Quantization, export

__all__ = ["Agreement", "Difference", "ExportResult", "Quantization", "export"]
