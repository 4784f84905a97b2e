"""All settings: declared once, read from flags and TOML files, merged over presets."""

from tfm.config.inference import (
    AverageConfig,
    InferenceConfig,
    InferenceDevice,
    InferenceEngine,
    InferencePrecision,
    ScoreConfig,
    SearchConfig,
)
from tfm.config.model import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.config.normalization import LATEST_NORMALIZATION, Normalization
from tfm.config.presets import (
    adapting_table,
    presets,
    read_toml,
    run_config,
    run_table,
    run_toml,
    sets_steps,
    settings_missing_in,
    suitable_arch,
)
from tfm.config.schema import Settings, by_section, flag_of, settings_from, settings_to
from tfm.config.text import BinarizeConfig, CleaningConfig, SubwordConfig, tag_problem
from tfm.config.training import (
    RUN_SETTINGS,
    AugmentationConfig,
    BatchingConfig,
    BleuTokenizer,
    DeviceName,
    Kernels,
    ModelPart,
    OptimizerConfig,
    Precision,
    RunConfig,
    Task,
    TokenizerChoice,
    TrainingConfig,
)
from tfm.config.values import Values
