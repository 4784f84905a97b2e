"""tfm: train, run and score the Transformer of "Attention Is All You Need".

`make reference` generates this file from the commands and their settings.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from tfm.applications.check.suite import CheckResult as CheckResult
from tfm.applications.doctor.checks import Finding as Finding
from tfm.commands.attend import AttendResult as AttendResult
from tfm.commands.evaluation import Evaluation as Evaluation
from tfm.commands.export import ExportResult as ExportResult
from tfm.commands.import_model import ImportResult as ImportResult
from tfm.commands.prepare import PrepareResult as PrepareResult
from tfm.commands.score import ScoreResult as ScoreResult
from tfm.commands.translator import Translator as Translator
from tfm.training.averaging import AverageResult as AverageResult
from tfm.training.model_summaries import ModelSummary as ModelSummary
from tfm.training.run import TrainResult as TrainResult
from tfm.training.run_summaries import RunSummary as RunSummary

StrPath = str | os.PathLike[str]
__version__: str

def prepare(
    recipe: StrPath | None = ...,
    *,
    train: StrPath | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Sequence[Sequence[str | os.PathLike[str]]] | None = ...,
    valid: StrPath | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Sequence[Sequence[str | os.PathLike[str]]] | None = ...,
    test: StrPath | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Sequence[Sequence[str | os.PathLike[str]]] | None = ...,
    valid_set: StrPath | Sequence[StrPath] | None = ...,
    test_set: StrPath | Sequence[StrPath] | None = ...,
    languages: tuple[str, str] | None = ...,
    columns: StrPath | None = ...,
    keep_tags: bool | None = ...,
    train_trees: StrPath | Sequence[StrPath] | None = ...,
    valid_trees: StrPath | Sequence[StrPath] | None = ...,
    test_trees: StrPath | Sequence[StrPath] | None = ...,
    out: StrPath | None = ...,
    mirror: StrPath | None = ...,
    downloads: StrPath | None = ...,
    verify: bool | None = ...,
    text_only: bool | None = ...,
    append: bool | None = ...,
    share: StrPath | None = ...,
    fetch_only: bool | None = ...,
    force: bool | None = ...,
    normalize_space: bool | None = ...,
    normalize_unicode: bool | None = ...,
    decode_entities: bool | None = ...,
    drop_empty: bool | None = ...,
    max_characters: int | None = ...,
    max_length_ratio: float | None = ...,
    drop_duplicates: bool | None = ...,
    drop_copies: bool | None = ...,
    drop_mojibake: bool | None = ...,
    drop_other_script: bool | None = ...,
    drop_unequal_numbers: bool | None = ...,
    drop_other_language: bool | None = ...,
    min_identified_characters: int | None = ...,
    max_length_deviations: float | None = ...,
    max_punctuation_deviations: float | None = ...,
    protect: Iterable[StrPath] | None = ...,
    shard_pairs: int | None = ...,
    score_model: StrPath | None = ...,
    scores: StrPath | None = ...,
    min_score: float | None = ...,
    unique_sides: Literal['source', 'target', 'both'] | None = ...,
    hold_out: int | None = ...,
    hold_out_seed: int | None = ...,
    vocab_size: int | None = ...,
    model_type: Literal['bpe', 'unigram'] | None = ...,
    separate: bool | None = ...,
    target_words: bool | None = ...,
    character_coverage: float | None = ...,
    subwords: Iterable[StrPath] | None = ...,
    byte_fallback: bool | None = ...,
    symbols: StrPath | None = ...,
    sample_sentences: int | None = ...,
    max_length: int | None = ...,
    threads: int | None = ...,
    seen_megabytes: int | None = ...,
    written_by: Iterable[StrPath] | None = ...,
) -> PrepareResult:
    r"""Prepare a dataset: download, clean, split, learn subwords, binarize.

    Examples::

        tfm prepare --list
        tfm prepare wmt14-en-de --test-set wmt19 --test-set wmt24
        tfm prepare --train train.en train.de --valid valid.en valid.de \
            --test test.en test.de --out data/mine
        tfm prepare --train memory.tmx --valid valid.csv --test test.jsonl \
            --languages en de --out data/mine
        tfm prepare --train-trees wsj/02-21 --valid-trees wsj/22 \
            --test-trees wsj/23 --out data/wsj

    Args:
        recipe: Name of a built-in recipe, or path of a recipe's TOML file.
        train: Training text: source and target file, or one with both (.tsv, .csv, .jsonl, .tmx,
            .xml); repeatable.
        valid: Validation text, in the same forms.
        test: Test text, in the same forms.
        valid_set: Validation set of sacreBLEU, such as wmt13; repeatable.
        test_set: Test set of sacreBLEU, such as wmt24; repeatable.
        languages: Language codes, unless they are the files' suffixes.
        columns: Columns of source and target, by number or title, or keys of JSON lines, such as
            2,3 or translation.en,translation.de.
        keep_tags: Keep the inline tags of TMX as placeholders such as {1}.
        train_trees: Training trees in brackets: a file or folder; repeatable.
        valid_trees: Validation trees: a file or folder; repeatable.
        test_trees: Test trees: a file or folder; repeatable.
        out: Dataset folder (default: data/RECIPE).
        mirror: Folder or URL that has the archives by their names.
        downloads: Folder to keep archives in (default: OUT/downloads).
        verify: Check archives against their checksums.
        text_only: Stop before learn-bpe and binarize.
        append: Add the training text to the dataset in OUT.
        share: Only clean share I of N of the training text; for several machines.
        fetch_only: Stop after the text is downloaded and unpacked.
        force: Redo all steps, even if runs depend on the dataset.
        normalize_space: Normalize white space, invisible characters and Windows-1252; also in text to translate.
        normalize_unicode: Compose Unicode (NFC), such as u and ¨ to ü, in all text; also in text to translate.
        decode_entities: Decode HTML entities, such as &amp; to & and &#39; to ', and &amp;quot; to a quote.
        drop_empty: Drop pairs with an empty side.
        max_characters: Drop pairs with a side of more than N characters; 0 keeps all.
        max_length_ratio: Drop pairs with a side over X times as long as usual in the text; 0 keeps all.
        drop_duplicates: Keep only the first of identical pairs.
        drop_copies: Drop pairs whose two sides are the same text.
        drop_mojibake: Drop pairs with text decoded from the wrong encoding, such as fÃ¼r instead of für.
        drop_other_script: Drop pairs with a side that is mostly not in the script of its language.
        drop_unequal_numbers: Drop pairs whose sides have different numbers; only numbers in digits count.
        drop_other_language: Drop pairs with a side in another language, as py3langid (extra: langid) identifies it.
        min_identified_characters: Do not identify the language of sides of fewer than N characters, which is unreliable.
        max_length_deviations: Drop pairs whose length ratio is over X deviations from the text's mean; 0 keeps all.
        max_punctuation_deviations: Drop pairs whose punctuation ratio is over X deviations from its mean; 0 keeps all.
        protect: Drop pairs with a side that is in this test set or file, exactly or nearly; repeatable.
        shard_pairs: Write the training text in shards, each with what is kept of N consecutive pairs.
        score_model: Model or run that scores pairs by the mean log probability of target tokens in nats.
        scores: File with a number per pair of the training text, in its order, higher for better pairs.
        min_score: Drop pairs with a score below X, such as -5 by a model, or 0.5 in a file.
        unique_sides: Of pairs with the same source, target or either, keep the best by scores or the first.
        hold_out: Hold out N training pairs as validation text, and N as test text, where none is given.
        hold_out_seed: Choose other pairs to hold out with another number.
        vocab_size: Number of pieces in the vocabulary; if unset, it depends on the size of the text.
        model_type: Subword algorithm; unigram takes several times as long to learn.
        separate: Learn one vocabulary per language instead of a joint one.
        target_words: Make each target word one piece, as for symbols of trees; needs --separate.
        character_coverage: Fraction of the text's characters that the vocabulary covers.
        subwords: Folder or file of an existing subword model; give it twice for source and target.
        byte_fallback: Spell uncovered characters in UTF-8 bytes instead of an unknown token.
        symbols: Tags such as '<bt> <2fr>' to reserve a piece for, besides the recipe's.
        sample_sentences: Learn from a random sample of N lines; a million lines take about 0.6 GB of memory.
        max_length: Drop training pairs with a side of more than N subword tokens.
        threads: Number of CPU threads; if unset, one per core.
        seen_megabytes: Record the training text for tfm score, in a file of at most N MB; 0 makes no record.
        written_by: Model or run that wrote some of the text: what it has seen counts as seen; repeatable.

    Raises:
        UsageError: Arguments are wrong or contradict each other, or a file does not exist.
        DataError: Text or archives are missing, damaged or inconsistent, or a disk is too small,
            which is checked before anything is downloaded.
        LockedFolderError: Another process writes to the dataset.
    """


def learn_bpe(
    data: StrPath | None = ...,
    *,
    force: bool | None = ...,
    vocab_size: int | None = ...,
    model_type: Literal['bpe', 'unigram'] | None = ...,
    separate: bool | None = ...,
    target_words: bool | None = ...,
    character_coverage: float | None = ...,
    subwords: Iterable[StrPath] | None = ...,
    byte_fallback: bool | None = ...,
    symbols: StrPath | None = ...,
    sample_sentences: int | None = ...,
) -> bool:
    """Learn the subword vocabulary of a dataset.

    Examples::

        tfm learn-bpe data/mine --vocab-size 8000
        tfm learn-bpe data/mine --subwords my.model

    Args:
        data: Dataset folder (default: the newest in data/).
        force: Redo this step, even if its inputs are unchanged or runs depend on its output.
        vocab_size: Number of pieces in the vocabulary; if unset, it depends on the size of the text.
        model_type: Subword algorithm; unigram takes several times as long to learn.
        separate: Learn one vocabulary per language instead of a joint one.
        target_words: Make each target word one piece, as for symbols of trees; needs --separate.
        character_coverage: Fraction of the text's characters that the vocabulary covers.
        subwords: Folder or file of an existing subword model; give it twice for source and target.
        byte_fallback: Spell uncovered characters in UTF-8 bytes instead of an unknown token.
        symbols: Tags such as '<bt> <2fr>' to reserve a piece for, besides the recipe's.
        sample_sentences: Learn from a random sample of N lines; a million lines take about 0.6 GB of memory.

    Returns:
        Whether it was learned; False if it was up to date.

    Raises:
        UsageError: Arguments are wrong, or the vocabulary size does not fit the text.
        DataError: There is no dataset, or no training text.
        LockedFolderError: Another process writes to the dataset.
    """


def binarize(
    data: StrPath | None = ...,
    *,
    share: StrPath | None = ...,
    force: bool | None = ...,
    max_length: int | None = ...,
    threads: int | None = ...,
    seen_megabytes: int | None = ...,
    written_by: Iterable[StrPath] | None = ...,
) -> bool:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --threads 8

    Args:
        data: Dataset folder (default: the newest in data/).
        share: Encode only share I of N of the shards of the training text; for several machines.
        force: Redo this step, even if its inputs are unchanged or runs depend on its output.
        max_length: Drop training pairs with a side of more than N subword tokens.
        threads: Number of CPU threads; if unset, one per core.
        seen_megabytes: Record the training text for tfm score, in a file of at most N MB; 0 makes no record.
        written_by: Model or run that wrote some of the text: what it has seen counts as seen; repeatable.

    Returns:
        Whether text was encoded; False if the token ids were up to date.

    Raises:
        UsageError: Arguments are wrong, or do not fit the subword model or the task.
        DataError: There is no dataset; text or subword model are missing, a line is not UTF-8, the
            sides differ in their numbers of lines, or a tag of the text is not in the vocabulary.
        LockedFolderError: Another process writes to the dataset.
    """


def train(
    data: StrPath | None = ...,
    *,
    run: StrPath | None = ...,
    arch: StrPath | None = ...,
    from_model: StrPath | None = ...,
    config: StrPath | None = ...,
    num_encoder_layers: int | None = ...,
    num_decoder_layers: int | None = ...,
    d_model: int | None = ...,
    dropout: float | None = ...,
    embedding_dropout: float | None = ...,
    attention_dropout: float | None = ...,
    tied_embeddings: Literal['three-way', 'two-way', 'none'] | None = ...,
    attention: Literal['dot-product', 'additive'] | None = ...,
    d_ff: int | None = ...,
    num_heads: int | None = ...,
    d_k: int | None = ...,
    d_v: int | None = ...,
    activation: Literal['relu', 'gelu', 'silu'] | None = ...,
    relu_dropout: float | None = ...,
    norm: Literal['post', 'pre'] | None = ...,
    attention_window: int | None = ...,
    learned_positions: int | None = ...,
    output_bias: bool | None = ...,
    cell: Literal['lstm', 'gru'] | None = ...,
    input_feeding: bool | None = ...,
    source_attention: Literal['soft', 'hard', 'local-m', 'local-p'] | None = ...,
    local_window: int | None = ...,
    encoder_width: int | None = ...,
    learning_rate: float | None = ...,
    warmup_steps: int | None = ...,
    lr_schedule: StrPath | None = ...,
    algorithm: Literal['adam', 'adamw'] | None = ...,
    optimizer: Literal['adam', 'adamw'] | None = ...,
    weight_decay: float | None = ...,
    adam_beta1: float | None = ...,
    adam_beta2: float | None = ...,
    adam_epsilon: float | None = ...,
    loss: StrPath | None = ...,
    label_smoothing: float | None = ...,
    clip_norm: float | None = ...,
    ema: float | None = ...,
    freeze: Iterable[StrPath] | None = ...,
    batch_tokens: int | None = ...,
    bucket_tokens: int | None = ...,
    max_tokens: int | None = ...,
    num_dropout_shards: int | None = ...,
    unpunctuated_share: float | None = ...,
    typo_share: float | None = ...,
    title_share: float | None = ...,
    upper_share: float | None = ...,
    bpe_dropout: float | None = ...,
    max_steps: int | None = ...,
    max_epochs: int | None = ...,
    max_minutes: float | None = ...,
    patience: int | None = ...,
    seed: int | None = ...,
    checkpoint_minutes: float | None = ...,
    checkpoint_steps: int | None = ...,
    keep_last: int | None = ...,
    keep_best: int | None = ...,
    best_metric: StrPath | None = ...,
    also_valid: Iterable[StrPath] | None = ...,
    average_last: int | None = ...,
    average: bool | None = ...,
    validation_beam: int | None = ...,
    validation_samples: int | None = ...,
    validation_tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    metric_command: StrPath | None = ...,
    log_steps: int | None = ...,
    tensorboard: bool | None = ...,
    license: StrPath | None = ...,
    background_saving: bool | None = ...,
    verify_data: bool | None = ...,
    max_skipped_steps: int | None = ...,
    stall_minutes: float | None = ...,
    shard: bool | None = ...,
    kernels: Literal['auto', 'plain'] | None = ...,
    compile: bool | None = ...,
    device: Literal['auto', 'cpu', 'cuda'] | None = ...,
    precision: Literal['auto', 'fp32', 'bf16', 'fp16'] | None = ...,
    threads: int | None = ...,
) -> TrainResult:
    """Train a model, or resume from the last checkpoint of the run folder.

    Without --config and --arch, an existing --run resumes with its own settings and dataset, and a
    new run takes the preset that suits the number of pairs and the device. The defaults
    shown here are those of --arch base; other presets and --from have others.

    Examples::

        tfm train --arch tiny
        tfm train --run runs/wmt14-en-de-base --max-steps 200000
        tfm train data/wmt14-en-de --arch big --gpus 8
        tfm train data/legal --from runs/wmt14-en-de-base
        srun tfm train data/wmt14-en-de --arch big

    Args:
        data: Dataset folder (default: the newest in data/).
        run: Run folder (default: runs/DATA-ARCH); an existing run is resumed.
        arch: Preset (default: by size of DATA and device).
        from_model: Model or run folder to start from, to adapt it to DATA.
        config: TOML file of settings; flags take precedence over it.
        num_encoder_layers: Number of encoder layers.
        num_decoder_layers: Number of decoder layers.
        d_model: Width of embeddings and layer outputs.
        dropout: Dropout on each sub-layer's output.
        embedding_dropout: Dropout on the sum of embeddings and positions.
        attention_dropout: Dropout on attention weights.
        tied_embeddings: Which embeddings share a matrix: source, target and output, or only target and output.
        attention: Score of query and key: q·k / √d_k (§3.2.1), or vᵀ tanh(q + k) (Bahdanau et al. 2015).
        d_ff: Inner width of feed-forward sub-layers.
        num_heads: Number of attention heads.
        d_k: Width of queries and keys per head; d_model / num_heads if unset.
        d_v: Width of values per head; d_model / num_heads if unset.
        activation: Activation function of feed-forward sub-layers; ReLU in the paper.
        relu_dropout: Dropout after the activation of feed-forward sub-layers.
        norm: Layer norm after each residual sum (post, as in the paper) or before sub-layers (pre).
        attention_window: Restrict self-attention to the N nearest positions (table 1, r); all if unset.
        learned_positions: Learn embeddings of N positions, the longest sentence; sinusoids if unset (table 3, E).
        output_bias: Add a learned bias to the logits, as imported models have; none in the paper.
        cell: For --arch rnn: type of recurrent cell.
        input_feeding: For --arch rnn: feed the attention output into the next step (Luong et al. 2015, §3.3).
        source_attention: For --arch rnn: attend to all source tokens (soft), one (hard), or those near a position.
        local_window: For --arch rnn: local attention to N tokens on each side (Luong et al. 2015, §3.2, D).
        encoder_width: For --arch rnn: width of the encoder's outputs; d_model if unset.
        learning_rate: Peak learning rate; if unset, (d_model · warmup_steps)^-0.5 (§5.3).
        warmup_steps: Number of linear warmup steps.
        lr_schedule: Learning rate after warmup; linear and cosine end at 0; MODULE:NAME is your function.
        algorithm: Adam (§5.3), or AdamW, which decays weights.
        weight_decay: AdamW: decay of matrices, as a multiple of the learning rate; 0.01 if unset.
        adam_beta1: Adam's β1.
        adam_beta2: Adam's β2.
        adam_epsilon: Adam's ε.
        loss: Loss of a target token, with label smoothing (§5.4); MODULE:NAME is your function.
        label_smoothing: Probability spread over all tokens but the correct one.
        clip_norm: Clip gradients to this norm; 0 turns clipping off, as in the paper.
        ema: Validate and save a moving average of the weights with this decay, such as 0.999.
        freeze: With --from: keep a part unchanged; embeddings include the output matrix; repeatable.
        batch_tokens: Target tokens per step, summed over all devices and their microbatches.
        bucket_tokens: Cut pairs sorted by length into buckets of about N target tokens; batches join some.
        max_tokens: Maximum tokens per side of a microbatch, with padding unless packed; by device if unset.
        num_dropout_shards: Draw the dropout masks of a run on N processes, to reproduce it on fewer.
        unpunctuated_share: Share of the pairs to write without final punctuation.
        typo_share: Share of the pairs to put typos into the source of.
        title_share: Share of the pairs to write in title case.
        upper_share: Share of the pairs to write in capitals.
        bpe_dropout: Leave out each merge of BPE with this probability (Provilkov et al. 2020).
        max_steps: Stop after N steps.
        max_epochs: Stop after N epochs.
        max_minutes: Stop after X minutes of wall time, validation included.
        patience: Stop after N validations in a row without improvement in best_metric.
        seed: Random seed of initial weights, data order and dropout.
        checkpoint_minutes: Validate and save a checkpoint every X minutes; replaces a preset's checkpoint_steps.
        checkpoint_steps: Validate and save every N steps, instead of every N minutes.
        keep_last: Number of newest checkpoints to keep, of the validated ones if there are any.
        keep_best: Number of best checkpoints to keep besides the newest.
        best_metric: Rank checkpoints by validation loss, score (BLEU, F1; once above 1), metric_command or NAME:score.
        also_valid: Also validate on another dataset, NAME=DATA, to see what is forgotten; repeatable.
        average_last: Average at most N of the newest checkpoints, all from the last fifth of the steps.
        average: Average the newest checkpoints when training ends, as `tfm average` does; not with ema.
        validation_beam: Beam size for the validation score; 0 computes no score.
        validation_samples: Record the translations of N sentences at each validation, for report.html.
        validation_tokenize: Tokenizer of BLEU in validation; auto depends on the target language.
        metric_command: Also validate by a program, which reads source, output, reference (TSV) and prints a number.
        log_steps: Write a line to metrics.jsonl every N steps.
        tensorboard: Write event files for TensorBoard into the run folder, too (tensorboardX).
        license: License of the model, such as CC-BY-4.0, to record in its folders.
        background_saving: Write checkpoints in the background, from a copy in memory.
        verify_data: Verify all training data before the first step, also beyond 10 million pairs.
        max_skipped_steps: Stop after N skipped steps in a row; a loss or gradient that is not finite skips a step.
        stall_minutes: Abort if any process makes no progress for X minutes.
        shard: Shard weights and optimizer state over processes (FSDP), for models too large for one.
        kernels: Implementation of layers: the fastest for the device (auto), or torch's own (plain).
        compile: On a GPU with --kernels auto, compile the layers: slow first steps, faster later steps.
        device: Device to compute on; auto is a GPU if there is one.
        precision: Matrix product precision; auto: bf16 if the device has it, fp16 on old GPUs, else fp32.
        threads: Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core.

    Raises:
        UsageError: Arguments are wrong, do not fit the dataset or device, or differ from the
            settings of the run to resume.
        DataError: There is no dataset, or it cannot be used.
        CheckpointError: The checkpoints are damaged, or the last one could not be saved.
        TrainingError: Training has diverged, or there is not enough memory.
        InterruptedRunError: A signal stopped the run, which is saved.

    Note:
        In Python, this process trains alone: several GPUs need several processes, which `tfm train
        --gpus N` starts. Ctrl-C and other signals save the run first, if this is the main thread; a
        second Ctrl-C raises KeyboardInterrupt. A run that makes no progress for `stall_minutes`
        ends the process.
    """


def average(
    run: StrPath | None = ...,
    *,
    out: StrPath | None = ...,
    last: int | None = ...,
    best: int | None = ...,
    calibrate: bool | None = ...,
) -> AverageResult:
    """Average the newest checkpoints of a run, as the paper does with its last 5 or 20.

    Example: tfm average runs/wmt14-en-de-base --last 5

    Args:
        run: Run folder (default: the newest in runs/).
        out: Folder of the averaged model (default: RUN/averaged).
        last: Average the N newest checkpoints, whatever their steps (default: the run's average_last).
        best: Average the N best checkpoints by the run's best_metric.
        calibrate: Translate the validation text to calibrate the confidence of `tfm generate --json`.

    Raises:
        UsageError: Arguments are wrong, there are fewer checkpoints than requested, or `out` holds
            something other than an average.
        CheckpointError: The run has no checkpoints, or a damaged one; or training has diverged.
        DataError: The validation text is gone, or too short to calibrate on.
    """


def export(
    models: StrPath | Sequence[StrPath] | None = ...,
    *,
    out: StrPath | None = ...,
    format: Literal['ctranslate2', 'huggingface', 'onnx', 'argos'] | None = ...,
    quantization: Literal['none', 'int8', 'int8_float16', 'int8_bfloat16', 'int16', 'float16', 'bfloat16'] | None = ...,
    check: int | None = ...,
    check_input: StrPath | None = ...,
    force: bool | None = ...,
) -> ExportResult:
    """Convert a model for CTranslate2, transformers, ONNX Runtime or Argos Translate.

    CTranslate2 is a runtime without torch (--check needs pip install ".[export]"). For
    transformers, post-norm models become Marian and pre-norm ones Pegasus models (pip install
    ".[huggingface]"). For ONNX Runtime, encoder and decoder step are two files without a
    search (pip install ".[onnx]"). Argos Translate and LibreTranslate install a package of the
    model for CTranslate2.

    With length penalty 0, all programs find the same translations. With other values, tfm divides
    log probabilities by ((5 + length) / 6)^α, and the others by length^α.

    With --check, unquantized weights must also give the same probabilities.

    Examples::

        tfm export runs/wmt14-en-de-base --check 200
        tfm export --quantization int8 --out model-int8
        tfm export runs/wmt14-en-de-base --format huggingface

    Args:
        models: Model or run folder (default: the newest run in runs/).
        out: Output folder (default: RUN/FORMAT or MODEL-FORMAT, plus quantization).
        format: Program to write for: CTranslate2, transformers, ONNX Runtime, or Argos Translate.
        quantization: For CTranslate2 and Argos: type of weights, and of products if the CPU
            supports it.
        check: Translate N lines of the test set with both programs and print the differences.
        check_input: File whose lines are translated instead, for a model without a test set.
        force: Overwrite an earlier export.

    Raises:
        UsageError: A package that the format needs is not installed, the format cannot express the
            model, or `out` exists.
        CheckpointError: The model is missing or damaged, or the export differs from it.
        DataError: There is no test set for the check.
    """


def import_model(
    model: StrPath,
    *,
    out: StrPath | None = ...,
    source: StrPath | None = ...,
    target: StrPath | None = ...,
    revision: StrPath | None = ...,
    force: bool | None = ...,
) -> ImportResult:
    """Import a model of Marian (OPUS-MT), a Transformer of fairseq, or an export of tfm.

    A Marian model has the format of transformers, as a folder or a name on the Hugging Face Hub
    (pip install ".[hub]"), or Marian's own: a .npz file with its vocabularies beside it, or a
    zip archive of OPUS-MT or Tatoeba. A model of fairseq is a checkpoint with its dict.LANG.txt,
    and its SentencePiece model if it has one. What tfm export --format huggingface wrote becomes
    the same model again. No code in a file is run.

    The result is an ordinary model folder: translate with it, adapt it with tfm train --from. It
    records the license and the origin that the model's card names (README.md, LICENSE).

    A model whose vocabulary has several tags such as >>fra<< translates to all their languages.

    Examples::

        tfm import Helsinki-NLP/opus-mt-en-de
        tfm import opus-2020-02-26.zip --out models/en-de
        tfm import wmt16.en-de/checkpoint_best.pt
        tfm import runs/wmt14-en-de-base/huggingface

    Args:
        model: Folder or file of the model, or its name on the Hugging Face Hub.
        out: Model folder to write (default: models/NAME, with the name of MODEL).
        source: Source language (default: named by the model).
        target: Target language (default: named by the model, or by its tags).
        revision: For a model of the Hub: a branch, tag or commit (default: the newest).
        force: Overwrite an earlier import.

    Raises:
        UsageError: There is no such model, it has a part that tfm does not support, languages are
            unknown, or `out` exists.
        CheckpointError: Weights are missing or damaged, or contain code.
        DataError: The vocabulary or the archive is missing or damaged.
        DownloadError: The Hub cannot be reached.
    """


def runs(
    folders: StrPath | Sequence[StrPath] | None = ...,
    *,
    out: StrPath | None = ...,
) -> list[RunSummary]:
    """List runs with state, step, best validation, speed and age, the newest first.

    Runs that differ only by --seed have a line of their mean and its deviation, too. Run folders
    that are named are also drawn: their curves and different settings in one page.

    A run is running if a process on this machine holds its lock. A run on another machine counts as
    running if its newest metrics are at most --stall-minutes old, or three times the interval
    between the last two lines.

    Examples::

        tfm runs
        tfm runs runs/multi30k-en-de-tiny runs/multi30k-en-de-small

    Args:
        folders: Run folders, or folders that have runs below them (default: runs/).
        out: Page of curves to write (default: runs.html for named runs, none with --json).

    Raises:
        UsageError: A folder does not exist, or a page cannot show as many runs.
    """


def models(
    folders: StrPath | Sequence[StrPath] | None = ...,
) -> list[ModelSummary]:
    """List the models on the disk: the best checkpoints of runs, averaged and exported models.

    BLEU, or bracket F1 of parsers, is on the validation text. "~" marks an average of checkpoints:
    the score is the best of its checkpoints.

    Examples::

        tfm models
        tfm models /data/models --json

    Args:
        folders: Folders to search (default: runs/ and models/).

    Raises:
        UsageError: A folder does not exist.
    """


def generate(
    models: StrPath | Sequence[StrPath] | None = ...,
    *,
    input: StrPath | None = ...,
    output: StrPath | None = ...,
    split: StrPath | None = ...,
    gpus: StrPath | None = ...,
    processes: int | None = ...,
    prefix: StrPath | None = ...,
    score_target: StrPath | None = ...,
    per_token: bool | None = ...,
    step: StrPath | Sequence[StrPath] | None = ...,
    json: bool | None = ...,
    format: Literal['lines', 'text', 'html', 'xml', 'srt'] | None = ...,
    document: bool | None = ...,
    align: bool | None = ...,
    align_reverse: StrPath | None = ...,
    glossary: StrPath | None = ...,
    protect: Iterable[StrPath] | None = ...,
    protect_for: Iterable[StrPath] | None = ...,
    no_protect: bool | None = ...,
    search: Literal['beam', 'sample', 'exact'] | None = ...,
    beam_size: int | None = ...,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    max_extra_length: int | None = ...,
    min_length: int | None = ...,
    no_repeat_ngram: int | None = ...,
    no_repetition: bool | None = ...,
    ban: StrPath | None = ...,
    n_best: int | None = ...,
    mbr: Literal['chrf', 'bleu', 'command'] | None = ...,
    metric_command: StrPath | None = ...,
    mbr_tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    num_groups: int | None = ...,
    diversity_strength: float | None = ...,
    diversity_steps: int | None = ...,
    temperature: float | None = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    epsilon: float | None = ...,
    seed: int | None = ...,
    node_limit: int | None = ...,
    tag: StrPath | None = ...,
    max_source_length: int | None = ...,
    max_tokens: int | None = ...,
    device: Literal['auto', 'cpu', 'cuda', 'mps'] | None = ...,
    precision: Literal['auto', 'fp32', 'bf16', 'fp16', 'int8'] | None = ...,
    kernels: Literal['auto', 'plain'] | None = ...,
    threads: int | None = ...,
    engine: Literal['auto', 'torch', 'ctranslate2'] | None = ...,
) -> Iterator[str]:
    """Translate standard input, a file or a test set, line by line.

    The output has one line per input line, in the same order.

    Examples::

        tfm generate --beam 4 | tfm score
        echo "Two dogs play in the snow." | tfm generate runs/multi30k-en-de-tiny
        tfm generate --search sample --top-p 0.9 --n-best 5 --input in.en
        tfm generate --gpus 8 --input in.en --output out.de

    Args:
        models: Model or run folders (default: the newest run); several form an ensemble.
        input: File to translate; - is standard input.
        output: File to write when complete; repeat a stopped command to continue; - is stdout.
        split: Translate test, valid or a test set of the model's dataset.
        gpus: Divide the work among N GPUs of this machine; auto uses all GPUs.
        processes: Divide the work among N processes, which share the cores of a CPU, or the GPUs.
        prefix: File with the beginning of each translation, a line each; it may end within a word.
        score_target: Score the translations in a file: print score, log probability, tokens and
            text.
        per_token: With --score-target: print a line per token: line number, log probability, piece.
        step: Class of Python that is a step around all others; several may be given, the outermost
            first.
        json: Print one JSON object per line, with scores.
        format: Sentences (lines), paragraphs (text) or markup, which is kept.
        document: The same as --format text.
        align: Add the word alignment of each translation, such as 0-0 1-2, in a last column.
        align_reverse: With --align or markup: a model of the reverse direction, to combine both alignments.
        glossary: Glossary of source terms, their translations and comments, separated by tabs, to use.
        protect: Copy what the regular expression matches, besides placeholders, addresses and the like; may be repeated.
        protect_for: Also copy what could be ordinary text, but is a placeholder of this program, such as laravel or qt; may be repeated.
        no_protect: Translate placeholders, addresses, file names, hashtags and mentions as any text.
        search: Beam search, random sampling, or exact search, provably the best.
        beam_size: Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.
        length_penalty: Exponent α of the GNMT length penalty; 0 ranks by log probability.
        max_extra_length: Maximum length of a translation: N more tokens than the source.
        min_length: Minimum number of tokens in the translation of a non-empty line; 0 allows empty output.
        no_repeat_ngram: Do not repeat a sequence of N tokens within a translation; no limit if unset.
        no_repetition: Of the beam, prefer translations that do not repeat a part again and again.
        ban: File of words and phrases, one per line, that no translation contains.
        n_best: Number of translations per sentence, best first.
        mbr: Minimum Bayes risk: of n_best candidates, choose the most similar to all by this metric.
        metric_command: With --mbr command: a program, which reads source and two candidates (TSV) and prints a number.
        mbr_tokenize: With mbr bleu: the tokenizer of BLEU; auto depends on the target language.
        num_groups: Diverse beam search: number of groups that the beam is divided into.
        diversity_strength: Diverse beam search: penalty in nats per earlier group that chose the same token.
        diversity_steps: Diverse beam search: penalize only the first N tokens, after a prefix; all if unset.
        temperature: Sampling: divide logits by this; below 1 is less random.
        top_k: Sampling: draw from the N most probable tokens; from all if unset.
        top_p: Sampling: draw from the fewest tokens whose probabilities sum to X; from all if unset.
        epsilon: Sampling: draw from tokens of at least probability X; from all if unset.
        seed: Random seed of sampling.
        node_limit: Exact search: give up a sentence after extending N prefixes.
        tag: Put this tag of the vocabulary, such as <2fr>, before each line that is not empty.
        max_source_length: Truncate longer sources to N tokens, with a warning.
        max_tokens: Source tokens per batch, padding included; if unset, it depends on model and GPU.
        device: Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, untested.
        precision: Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.
        kernels: Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own.
        threads: Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core.
        engine: Library that computes: torch, or CTranslate2 on a CPU; auto: CTranslate2 for tfm serve, if it can.

    Returns:
        The lines that the command prints, with their ends, as soon as they are ready. None if they
        go to `output`, which is complete when the function returns.

    Raises:
        UsageError: Arguments are wrong, contradict each other or have no effect, or the output
            would overwrite a file that is read, or that belongs to a dataset, model or run.
        CheckpointError: There is no such model, or it is damaged.
        DataError: A file does not exist, or differs from the text in its number of lines; or the
            dataset of the model now has other languages.
    """


def score(
    hypotheses: StrPath | os.PathLike[str] | Iterable[str] | None = ...,
    reference: StrPath | os.PathLike[str] | Iterable[str] | Sequence[str | os.PathLike[str] | Iterable[str]] | None = ...,
    *,
    test_set: StrPath | None = ...,
    mirror: StrPath | None = ...,
    metric: Literal['bleu', 'paper-bleu', 'chrf', 'ter', 'exact', 'bracket-f1', 'command'] | Sequence[Literal['bleu', 'paper-bleu', 'chrf', 'ter', 'exact', 'bracket-f1', 'command']] | None = ...,
    paper: bool | None = ...,
    language: StrPath | None = ...,
    baseline: StrPath | os.PathLike[str] | Iterable[str] | None = ...,
    source: StrPath | os.PathLike[str] | Iterable[str] | None = ...,
    worst: int | None = ...,
    per_line: StrPath | None = ...,
    page: StrPath | None = ...,
    compare: StrPath | Sequence[StrPath] | None = ...,
    lowercase: bool | None = ...,
    tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    chrf_word_order: int | None = ...,
    metric_command: StrPath | None = ...,
    normalize_punctuation: bool | None = ...,
    split_compounds: Literal['auto', 'yes', 'no'] | None = ...,
    bootstrap_samples: int | None = ...,
    bootstrap_seed: int | None = ...,
) -> ScoreResult:
    """Score translations; each score has a signature of its settings.

    Examples::

        tfm generate --beam 4 | tfm score --paper
        tfm score --hypotheses out.de --test-set wmt14:en-de
        tfm score --hypotheses out.de --reference test.de --metric bleu --metric ter

    Args:
        hypotheses: File of translations (default: standard input).
        reference: Reference file; repeatable (default: the reference of the last tfm generate).
        test_set: Score against a test set by its name in sacreBLEU, such as wmt14:en-de.
        mirror: Folder or URL to fetch the test set's files from, by their names.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        paper: Also compute BLEU as in the paper, and explain the difference to sacreBLEU.
        language: Target language, for BLEU's tokenizer and --paper (default: as in the last tfm
            generate for this reference, or the reference's suffix).
        baseline: Other translations of the same text: test whether the scores differ.
        source: File of the source text, for --metric-command and single lines (default: the text of
            the last tfm generate for this reference).
        worst: Print the N lines with the lowest chrF.
        per_line: Write chrF, BLEU and TER of each line to a file of tab-separated values, or to a
            .jsonl file with the texts.
        page: Write a web page of the lines that marks what differs from the reference.
        compare: File of further translations for the page and the file of lines; repeatable.
        lowercase: Ignore case; TER always ignores it.
        tokenize: Tokenizer of BLEU; auto is zh for Chinese, char for Japanese, Thai and the like, 13a for others.
        chrf_word_order: Longest word n-gram of chrF; 2 computes chrF++.
        metric_command: Also score by a program, which reads source, translation, reference (TSV) and prints a number.
        normalize_punctuation: With --paper: first replace typographic quotes and dashes, as Moses does.
        split_compounds: With --paper: split a-b into three tokens; auto does so for German only.
        bootstrap_samples: Number of bootstrap samples of the lines, for intervals and for the test with --baseline.
        bootstrap_seed: Random seed of the bootstrap samples.

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no reference.
        DataError: A text is missing, empty or not UTF-8, or the files differ in length.

    Note:
        In Python, a list of lines may take the place of each file, and a list of lists the place
        of several references. If the translations are a file, a list of strings names references.
    """


def evaluate(
    models: StrPath | Sequence[StrPath] | None = ...,
    *,
    on: StrPath | Sequence[StrPath] | None = ...,
    metric: Literal['bleu', 'paper-bleu', 'chrf', 'ter', 'exact', 'bracket-f1', 'command'] | Sequence[Literal['bleu', 'paper-bleu', 'chrf', 'ter', 'exact', 'bracket-f1', 'command']] | None = ...,
    system: StrPath | Sequence[StrPath] | None = ...,
    out: StrPath | None = ...,
    page: StrPath | None = ...,
    mirror: StrPath | None = ...,
    gpus: StrPath | None = ...,
    lowercase: bool | None = ...,
    tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    chrf_word_order: int | None = ...,
    metric_command: StrPath | None = ...,
    normalize_punctuation: bool | None = ...,
    split_compounds: Literal['auto', 'yes', 'no'] | None = ...,
    bootstrap_samples: int | None = ...,
    bootstrap_seed: int | None = ...,
    glossary: StrPath | None = ...,
    protect: Iterable[StrPath] | None = ...,
    protect_for: Iterable[StrPath] | None = ...,
    no_protect: bool | None = ...,
    search: Literal['beam', 'sample', 'exact'] | None = ...,
    beam_size: int | None = ...,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    max_extra_length: int | None = ...,
    min_length: int | None = ...,
    no_repeat_ngram: int | None = ...,
    no_repetition: bool | None = ...,
    ban: StrPath | None = ...,
    n_best: int | None = ...,
    mbr: Literal['chrf', 'bleu', 'command'] | None = ...,
    mbr_tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    num_groups: int | None = ...,
    diversity_strength: float | None = ...,
    diversity_steps: int | None = ...,
    temperature: float | None = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    epsilon: float | None = ...,
    seed: int | None = ...,
    node_limit: int | None = ...,
    tag: StrPath | None = ...,
    max_source_length: int | None = ...,
    max_tokens: int | None = ...,
    device: Literal['auto', 'cpu', 'cuda', 'mps'] | None = ...,
    precision: Literal['auto', 'fp32', 'bf16', 'fp16', 'int8'] | None = ...,
    kernels: Literal['auto', 'plain'] | None = ...,
    threads: int | None = ...,
    engine: Literal['auto', 'torch', 'ctranslate2'] | None = ...,
) -> Evaluation:
    """Score models on test sets, and test whether they differ from the first.

    Runs that differ only by --seed are a group, compared by its mean.

    Examples::

        tfm evaluate runs/base runs/big --on wmt14 --on wmt24 --beam 4
        tfm evaluate runs/new --on news.en:news.de --system old=news.old.de

    Args:
        models: Model or run folders (default: the newest run); the first is the baseline.
        on: Split, test set of sacreBLEU, SOURCE:REFERENCE, or one file with both sides; repeatable.
        metric: Metric; repeatable (default: bleu and chrf, or bracket-f1 for trees).
        system: Translations of another system, a FILE for each --on.
        out: Folder of translations.
        page: HTML page to write.
        mirror: Folder or URL that has the files of test sets by their names.
        gpus: Divide the work among N GPUs of this machine; auto uses all GPUs.
        lowercase: Ignore case; TER always ignores it.
        tokenize: Tokenizer of BLEU; auto is zh for Chinese, char for Japanese, Thai and the like, 13a for others.
        chrf_word_order: Longest word n-gram of chrF; 2 computes chrF++.
        metric_command: Also score by a program, which reads source, translation, reference (TSV) and prints a number.
        normalize_punctuation: With --paper: first replace typographic quotes and dashes, as Moses does.
        split_compounds: With --paper: split a-b into three tokens; auto does so for German only.
        bootstrap_samples: Number of bootstrap samples of the lines, for intervals and for the test with --baseline.
        bootstrap_seed: Random seed of the bootstrap samples.
        glossary: Glossary of source terms, their translations and comments, separated by tabs, to use.
        protect: Copy what the regular expression matches, besides placeholders, addresses and the like; may be repeated.
        protect_for: Also copy what could be ordinary text, but is a placeholder of this program, such as laravel or qt; may be repeated.
        no_protect: Translate placeholders, addresses, file names, hashtags and mentions as any text.
        search: Beam search, random sampling, or exact search, provably the best.
        beam_size: Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.
        length_penalty: Exponent α of the GNMT length penalty; 0 ranks by log probability.
        max_extra_length: Maximum length of a translation: N more tokens than the source.
        min_length: Minimum number of tokens in the translation of a non-empty line; 0 allows empty output.
        no_repeat_ngram: Do not repeat a sequence of N tokens within a translation; no limit if unset.
        no_repetition: Of the beam, prefer translations that do not repeat a part again and again.
        ban: File of words and phrases, one per line, that no translation contains.
        n_best: Number of translations per sentence, best first.
        mbr: Minimum Bayes risk: of n_best candidates, choose the most similar to all by this metric.
        mbr_tokenize: With mbr bleu: the tokenizer of BLEU; auto depends on the target language.
        num_groups: Diverse beam search: number of groups that the beam is divided into.
        diversity_strength: Diverse beam search: penalty in nats per earlier group that chose the same token.
        diversity_steps: Diverse beam search: penalize only the first N tokens, after a prefix; all if unset.
        temperature: Sampling: divide logits by this; below 1 is less random.
        top_k: Sampling: draw from the N most probable tokens; from all if unset.
        top_p: Sampling: draw from the fewest tokens whose probabilities sum to X; from all if unset.
        epsilon: Sampling: draw from tokens of at least probability X; from all if unset.
        seed: Random seed of sampling.
        node_limit: Exact search: give up a sentence after extending N prefixes.
        tag: Put this tag of the vocabulary, such as <2fr>, before each line that is not empty.
        max_source_length: Truncate longer sources to N tokens, with a warning.
        max_tokens: Source tokens per batch, padding included; if unset, it depends on model and GPU.
        device: Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, untested.
        precision: Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.
        kernels: Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own.
        threads: Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core.
        engine: Library that computes: torch, or CTranslate2 on a CPU; auto: CTranslate2 for tfm serve, if it can.

    Raises:
        UsageError: Arguments are wrong or without effect, or there is no such test set.
        CheckpointError: There is no such model, or it is damaged.
        DataError: A text is missing or damaged, or differs from its reference in length.
    """


def check(
    model: StrPath | None = ...,
    *,
    source: StrPath | None = ...,
    reference: StrPath | None = ...,
    lines: int | None = ...,
    baseline: StrPath | None = ...,
    page: StrPath | None = ...,
    junit: StrPath | None = ...,
    glossary: StrPath | None = ...,
    protect: Iterable[StrPath] | None = ...,
    protect_for: Iterable[StrPath] | None = ...,
    no_protect: bool | None = ...,
    search: Literal['beam', 'sample', 'exact'] | None = ...,
    beam_size: int | None = ...,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    max_extra_length: int | None = ...,
    min_length: int | None = ...,
    no_repeat_ngram: int | None = ...,
    no_repetition: bool | None = ...,
    ban: StrPath | None = ...,
    metric_command: StrPath | None = ...,
    mbr_tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    num_groups: int | None = ...,
    diversity_strength: float | None = ...,
    diversity_steps: int | None = ...,
    temperature: float | None = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    epsilon: float | None = ...,
    seed: int | None = ...,
    node_limit: int | None = ...,
    tag: StrPath | None = ...,
    max_source_length: int | None = ...,
    max_tokens: int | None = ...,
    device: Literal['auto', 'cpu', 'cuda', 'mps'] | None = ...,
    precision: Literal['auto', 'fp32', 'bf16', 'fp16', 'int8'] | None = ...,
    kernels: Literal['auto', 'plain'] | None = ...,
    threads: int | None = ...,
    engine: Literal['auto', 'torch', 'ctranslate2'] | None = ...,
) -> CheckResult:
    """Check how a model translates capitals, typos, numbers, addresses, long lines and the like.

    Each row changes the lines of a test set in one way, and compares the translations with those of
    the unchanged lines. The exit code is 1 if a row exceeds a threshold. Placeholders, addresses
    and the like are copied, but not with --no-protect.

    Examples::

        tfm check runs/multi30k-en-de-tiny
        tfm check runs/new --baseline runs/old --json

    Args:
        model: Model or run folder (default: the newest run).
        source: Lines to change (default: of the model's test or validation set).
        reference: Their references.
        lines: Use the first N lines.
        baseline: Model that may not be significantly better in a row.
        page: Write a web page with the worst translations.
        junit: Write a JUnit file for build servers.
        glossary: Glossary of source terms, their translations and comments, separated by tabs, to use.
        protect: Copy what the regular expression matches, besides placeholders, addresses and the like; may be repeated.
        protect_for: Also copy what could be ordinary text, but is a placeholder of this program, such as laravel or qt; may be repeated.
        no_protect: Translate placeholders, addresses, file names, hashtags and mentions as any text.
        search: Beam search, random sampling, or exact search, provably the best.
        beam_size: Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.
        length_penalty: Exponent α of the GNMT length penalty; 0 ranks by log probability.
        max_extra_length: Maximum length of a translation: N more tokens than the source.
        min_length: Minimum number of tokens in the translation of a non-empty line; 0 allows empty output.
        no_repeat_ngram: Do not repeat a sequence of N tokens within a translation; no limit if unset.
        no_repetition: Of the beam, prefer translations that do not repeat a part again and again.
        ban: File of words and phrases, one per line, that no translation contains.
        metric_command: With --mbr command: a program, which reads source and two candidates (TSV) and prints a number.
        mbr_tokenize: With mbr bleu: the tokenizer of BLEU; auto depends on the target language.
        num_groups: Diverse beam search: number of groups that the beam is divided into.
        diversity_strength: Diverse beam search: penalty in nats per earlier group that chose the same token.
        diversity_steps: Diverse beam search: penalize only the first N tokens, after a prefix; all if unset.
        temperature: Sampling: divide logits by this; below 1 is less random.
        top_k: Sampling: draw from the N most probable tokens; from all if unset.
        top_p: Sampling: draw from the fewest tokens whose probabilities sum to X; from all if unset.
        epsilon: Sampling: draw from tokens of at least probability X; from all if unset.
        seed: Random seed of sampling.
        node_limit: Exact search: give up a sentence after extending N prefixes.
        tag: Put this tag of the vocabulary, such as <2fr>, before each line that is not empty.
        max_source_length: Truncate longer sources to N tokens, with a warning.
        max_tokens: Source tokens per batch, padding included; if unset, it depends on model and GPU.
        device: Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, untested.
        precision: Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.
        kernels: Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own.
        threads: Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core.
        engine: Library that computes: torch, or CTranslate2 on a CPU; auto: CTranslate2 for tfm serve, if it can.

    Raises:
        UsageError: A setting is wrong, or a model is a parser.
        CheckpointError: There is no such model, or it is damaged.
        DataError: There is no test set, or the files differ in their numbers of lines.
    """


def attend(
    model: StrPath | None = ...,
    sentence: StrPath | None = ...,
    *,
    target: StrPath | None = ...,
    out: StrPath | Sequence[StrPath] | None = ...,
    kind: Literal['encoder', 'decoder', 'cross'] | None = ...,
    layer: int | None = ...,
    head: int | None = ...,
    beam: int | None = ...,
    device: Literal['auto', 'cpu', 'cuda', 'mps'] | None = ...,
) -> AttendResult:
    """Draw the attention of each layer and head while a model translates a sentence.

    Examples::

        tfm attend "Two dogs play in the snow."
        tfm attend runs/wmt14-en-de-base "The law." --layer 5 --out law.svg

    Args:
        model: Model or run folder (default: the newest run).
        sentence: Source sentence in quotes.
        target: Target sentence (default: the model's translation).
        out: Page (.html) or figure (.png, .svg) to write; repeatable (default: attention.html).
        kind: Attention to draw; a page contains all kinds and shows this one first.
        layer: Draw only this layer, counted from 1.
        head: Draw only this head, counted from 1.
        beam: Beam size of the translation.
        device: Device to compute on; mps: an Apple GPU, untested.

    Raises:
        UsageError: A sentence is empty or too long, a file name is not a picture's, or there is no
            such layer or head.
        CheckpointError: The model is missing, damaged or has diverged.
    """


def serve(
    models: StrPath | Sequence[StrPath] | None = ...,
    host: StrPath | None = ...,
    port: int | None = ...,
    api_key_file: StrPath | None = ...,
    min_confidence: float | None = ...,
    cors: Iterable[StrPath] | None = ...,
    max_characters: int | None = ...,
    max_body_bytes: int | None = ...,
    max_requests: int | None = ...,
    max_connections: int | None = ...,
    answer_seconds: int | None = ...,
    receive_seconds: int | None = ...,
    batch_characters: int | None = ...,
    glossary: StrPath | None = ...,
    protect: Iterable[StrPath] | None = ...,
    protect_for: Iterable[StrPath] | None = ...,
    no_protect: bool | None = ...,
    beam_size: int | None = ...,
    beam: int | None = ...,
    length_penalty: float | None = ...,
    max_extra_length: int | None = ...,
    min_length: int | None = ...,
    no_repeat_ngram: int | None = ...,
    no_repetition: bool | None = ...,
    ban: StrPath | None = ...,
    mbr_tokenize: Literal['auto', '13a', 'zh', 'char', 'intl', 'ja-mecab', 'ko-mecab', 'flores101', 'flores200', 'none'] | None = ...,
    num_groups: int | None = ...,
    diversity_strength: float | None = ...,
    diversity_steps: int | None = ...,
    max_source_length: int | None = ...,
    max_tokens: int | None = ...,
    device: Literal['auto', 'cpu', 'cuda', 'mps'] | None = ...,
    precision: Literal['auto', 'fp32', 'bf16', 'fp16', 'int8'] | None = ...,
    kernels: Literal['auto', 'plain'] | None = ...,
    threads: int | None = ...,
    engine: Literal['auto', 'torch', 'ctranslate2'] | None = ...,
) -> None:
    """Translate over HTTP (pip install ".[serve]").

    The protocol is LibreTranslate's, so its clients work. Requests that arrive together are
    translated together. SIGTERM stops the server after it has answered all requests.

    Examples::

        tfm serve
        tfm serve runs/multi30k-en-de-small runs/multi30k-de-en-small --port 8080

    Args:
        models: Model or run folders (default: the newest run), one per direction of translation.
        host: Address to listen on; by default, only programs of this machine reach it.
        port: Port to listen on; 0 takes any free port.
        api_key_file: File of the key that requests must have as api_key.
        min_confidence: Return a text as it is if the confidence in one of its sentences is below X.
        cors: Origin of web pages that may read answers, such as https://example.org; * for all.
        max_characters: Maximum number of characters in all texts of a request, and in its glossary.
        max_body_bytes: Largest body of a request.
        max_requests: Maximum number of requests that wait or are translated; further requests are refused.
        max_connections: Maximum number of open connections; requests on further connections are refused.
        answer_seconds: Maximum time in seconds to answer a request, waiting included.
        receive_seconds: Maximum time in seconds for a body to arrive, and between two requests of a connection.
        batch_characters: Maximum number of characters in a batch of requests that are translated together.
        glossary: Glossary of source terms, their translations and comments, separated by tabs, to use.
        protect: Copy what the regular expression matches, besides placeholders, addresses and the like; may be repeated.
        protect_for: Also copy what could be ordinary text, but is a placeholder of this program, such as laravel or qt; may be repeated.
        no_protect: Translate placeholders, addresses, file names, hashtags and mentions as any text.
        beam_size: Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.
        length_penalty: Exponent α of the GNMT length penalty; 0 ranks by log probability.
        max_extra_length: Maximum length of a translation: N more tokens than the source.
        min_length: Minimum number of tokens in the translation of a non-empty line; 0 allows empty output.
        no_repeat_ngram: Do not repeat a sequence of N tokens within a translation; no limit if unset.
        no_repetition: Of the beam, prefer translations that do not repeat a part again and again.
        ban: File of words and phrases, one per line, that no translation contains.
        mbr_tokenize: With mbr bleu: the tokenizer of BLEU; auto depends on the target language.
        num_groups: Diverse beam search: number of groups that the beam is divided into.
        diversity_strength: Diverse beam search: penalty in nats per earlier group that chose the same token.
        diversity_steps: Diverse beam search: penalize only the first N tokens, after a prefix; all if unset.
        max_source_length: Truncate longer sources to N tokens, with a warning.
        max_tokens: Source tokens per batch, padding included; if unset, it depends on model and GPU.
        device: Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, untested.
        precision: Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.
        kernels: Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own.
        threads: Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core.
        engine: Library that computes: torch, or CTranslate2 on a CPU; auto: CTranslate2 for tfm serve, if it can.
            requests decide.

    Raises:
        UsageError: Models are for the same languages, or a setting is wrong.
        CheckpointError: A folder has no valid model.
        TfmError: The address is not free.
    """


def quickstart(
    *,
    out: StrPath | None = ...,
    examples: StrPath | None = ...,
) -> None:
    """Run all seven stages on a small corpus in minutes, without network or GPU.

    Examples::

        tfm quickstart
        tfm quickstart --examples examples

    Args:
        out: Folder for data and runs.
        examples: Only copy the recipes, settings and scripts of examples to this folder, such as
            the rows of the paper's Table 3, and list them.

    Raises:
        UsageError: A file in `examples` has other content than that of tfm.
        TfmError: A stage failed, with the exit code of the stage.
        InterruptedRunError: Ctrl-C stopped a stage.
    """


def doctor() -> Iterator[Finding]:
    """Check this machine: Python, torch, arithmetic, cores, memory, disk, files and processes.

    The exit code is 1 if there is a problem.

    Example: tfm doctor

    Yields:
        The findings, as soon as they are there.
    """
