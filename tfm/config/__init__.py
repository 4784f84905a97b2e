"""All settings: declared once, read from flags and TOML files, merged over presets."""

from tfm.config.groups import (
    RUN_SETTINGS,
    AverageConfig,
    BatchingConfig,
    BinarizeConfig,
    CleaningConfig,
    DeviceName,
    InferenceConfig,
    InferenceDevice,
    InferencePrecision,
    Kernels,
    ModelPart,
    OptimizerConfig,
    Precision,
    RunConfig,
    ScoreConfig,
    SearchConfig,
    SubwordConfig,
    Task,
    TrainingConfig,
    tag_problem,
)
from tfm.config.model import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.config.presets import (
    PRESETS,
    adapting_table,
    run_config,
    run_table,
    suitable_arch,
)
from tfm.config.schema import (
    Settings,
    Table,
    by_section,
    flag_of,
    settings_from,
    settings_to,
)
from tfm.config.toml import read_toml, run_toml
