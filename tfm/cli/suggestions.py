"""Suggestions for unknown flags and commands: typos, and the words of other toolkits."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from tfm.errors import UsageError

# A flag or argument of tfm, and the words for it in fairseq, OpenNMT, Marian, Sockeye and others.
_FLAG_WORDS = {
    "DATA": "data-dir data-bin data-path dataset",
    "MODEL": "models model-path path checkpoint ckpt run",
    "RECIPE": "dataset config",
    "RUN": "inputs checkpoint-dir save-dir model",
    "--adam-beta1": "adam-betas optimizer-betas",
    "--adam-beta2": "adam-betas optimizer-betas",
    "--adam-epsilon": "adam-eps",
    "--batch-tokens": "batch-size train-batch-size update-freq accum-count optimizer-delay "
    "gradient-accumulation-steps",
    "--beam": "beam-size num-beams",
    "--best-metric": "best-checkpoint-metric early-stopping-metric optimized-metric",
    "--bootstrap-samples": "num-samples paired-bs-n",
    "--checkpoint-minutes": "save-interval-minutes",
    "--checkpoint-steps": "save-interval save-interval-updates save-steps save-freq eval-steps "
    "valid-steps valid-freq validate-interval save-checkpoint-steps checkpoint-interval",
    "--clip-norm": "max-grad-norm grad-clip gradient-clip gradient-clipping-threshold",
    "--d-ff": "transformer-dim-ffn transformer-ff ffn-dim ff-size encoder-ffn-embed-dim "
    "decoder-ffn-embed-dim intermediate-size",
    "--d-model": "hidden-size rnn-size dim-emb embed-dim encoder-embed-dim decoder-embed-dim",
    "--device": "cpu cuda gpu no-cuda use-cpu",
    "--dropout": "dropout-rate dropout-prob transformer-dropout",
    "--force": "overwrite",
    "--gpus": "devices ngpu num-gpus gpu-ranks world-size nproc-per-node",
    "--hypotheses": "hyp hypothesis sys system",
    "--input": "src in input-file",
    "--keep-best": "keep-best-checkpoints",
    "--keep-last": "keep-last-epochs keep-checkpoint keep-last-checkpoints save-total-limit",
    "--languages": "source-lang target-lang src-lang tgt-lang lang-pair",
    "--learning-rate": "lr",
    "--length-penalty": "lenpen alpha length-penalty-alpha",
    "--log-steps": "log-interval logging-steps report-every disp-freq",
    "--max-epochs": "epochs num-epochs num-train-epochs after-epochs",
    "--max-extra-length": "max-len-b max-len max-length max-new-tokens",
    "--max-steps": "max-update max-updates train-steps num-steps steps after-batches",
    "--max-tokens": "batch-size train-batch-size mini-batch",
    "--min-length": "min-len",
    "--n-best": "nbest num-return-sequences",
    "--node-rank": "machine-rank",
    "--nodes": "nnodes num-nodes num-machines",
    "--num-decoder-layers": "decoder-layers dec-layers dec-depth layers num-layers",
    "--num-encoder-layers": "encoder-layers enc-layers enc-depth layers num-layers",
    "--num-heads": "heads nhead attention-heads encoder-attention-heads "
    "decoder-attention-heads transformer-heads",
    "--out": "destdir output output-dir save-data",
    "--patience": "early-stopping early-stopping-patience",
    "--precision": "fp16 bf16 fp32 amp mixed-precision dtype",
    "--processes": "num-processes cpu-threads world-size nproc-per-node",
    "--reference": "ref references",
    "--run": "save-dir output-dir save-model checkpoint-dir restore-file train-from resume "
    "resume-from-checkpoint",
    "--search": "sampling do-sample strategy",
    "--separate": "no-share-vocab separate-vocab",
    "--shard": "fsdp use-fsdp ddp-backend",
    "--test": "testpref test-src",
    "--threads": "num-workers workers num-threads",
    "--tied-embeddings": "share-all-embeddings share-embeddings tied-embeddings-all "
    "share-decoder-input-output-embed tie-embeddings",
    "--top-k": "sampling-topk random-sampling-topk",
    "--top-p": "sampling-topp random-sampling-topp",
    "--train": "trainpref train-src train-sets",
    "--valid": "validpref valid-src valid-sets dev",
    "--vocab-size": "nwordssrc nwordstgt bpe-size bpe-tokens num-merges num-symbols symbols vocab",
    "--warmup-steps": "warmup warmup-updates lr-warmup num-warmup-steps",
}
_COMMAND_WORDS = {
    "attend": "attention plot visualize",
    "average": "average-checkpoints avg",
    "bench": "benchmark",
    "binarize": "preprocess tokenize encode",
    "export": "convert",
    "generate": "translate interactive inference infer decode predict",
    "learn-bpe": "bpe spm sentencepiece vocab build-vocab learn-joint-bpe",
    "prepare": "preprocess data download",
    "quickstart": "demo start init tutorial",
    "score": "eval evaluate bleu sacrebleu",
    "train": "fit finetune fine-tune resume",
}


class Commands(TyperGroup):
    """A group of commands that suggests one for an unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return typer's result for the command; raise UsageError if there is none."""
        if self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            found = _suggest(args[0], known, _COMMAND_WORDS)
            advice = _advice(ctx, [f"{ctx.command_path} {name}" for name in found])
            raise UsageError(f"no such command {args[0]}{advice}")
        return super().resolve_command(ctx, args)


def explain_unknown_option(name: str, context: typer.Context) -> str:
    """Return the message about an option that a command does not have, with those it may mean."""
    parameters = [*context.command.params]
    flags = [flag for p in parameters for flag in (*p.opts, *p.secondary_opts)]
    arguments = [p.metavar for p in parameters if p.param_type_name == "argument" and p.metavar]
    known = [flag for flag in flags if flag.startswith("--")] + arguments
    # Of -lr, typer names the first letter only: too little to suggest anything.
    found = _suggest(name, known, _FLAG_WORDS) if name.startswith("--") else []
    shown = [f"{each} without a flag" if each in arguments else each for each in found]
    return f"no such option {name}{_advice(context, shown)}"


def _suggest(word: str, known: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """Return the known names that a word stands for, abbreviates, or is close to."""
    bare = word.lstrip("-").replace("_", "-").lower()
    names = {name.removeprefix("--").lower(): name for name in known}
    found = [name for name in names.values() if bare in words.get(name, "").split()]
    found = found or [name for short, name in names.items() if short.startswith(bare)]
    return found or [names[short] for short in get_close_matches(bare, names, n=1)]


def _advice(context: typer.Context, names: list[str]) -> str:
    if names:
        return f": did you mean {' or '.join(names)}?"
    return f" (see {context.command_path} --help)"
