"""Suggestions for unknown names: what a typo or a word of another toolkit may mean."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_MAX_LENGTH = 100  # longer names are no typo, and comparing them takes time

# A flag, argument or setting, and the words for it in fairseq, OpenNMT, Marian and Sockeye.
WORDS = {
    "data": "data-dir data-bin data-path dataset",
    "model": "models model-path path checkpoint ckpt run",
    "recipe": "dataset config",
    "activation": "activation-fn activation-function hidden-act pos-ffn-activation-fn "
    "transformer-ffn-activation feed-forward-activation",
    "adam-beta1": "adam-betas optimizer-betas",
    "adam-beta2": "adam-betas optimizer-betas",
    "adam-epsilon": "adam-eps",
    "batch-tokens": "batch batch-size train-batch-size update-freq accum-count optimizer-delay "
    "gradient-accumulation-steps",
    "beam": "beam-size num-beams",
    "best-metric": "best-checkpoint-metric early-stopping-metric optimized-metric",
    "bootstrap-samples": "num-samples paired-bs-n",
    "bpe-dropout": "subword-dropout sentencepiece-alphas src-subword-alpha tgt-subword-alpha",
    "checkpoint-minutes": "save-interval-minutes",
    "checkpoint-steps": "save-interval save-interval-updates save-steps save-freq eval-steps "
    "valid-steps valid-freq validate-interval save-checkpoint-steps checkpoint-interval",
    "clip-norm": "max-grad-norm grad-clip gradient-clip gradient-clipping-threshold",
    "d-ff": "transformer-dim-ffn transformer-ff ffn-dim ff-size encoder-ffn-embed-dim "
    "decoder-ffn-embed-dim intermediate-size",
    "d-model": "hidden-size rnn-size dim-emb embed-dim encoder-embed-dim decoder-embed-dim",
    "device": "cpu cuda gpu no-cuda use-cpu",
    "dropout": "dropout-rate dropout-prob transformer-dropout",
    "ema": "exponential-smoothing ema-decay average-decay moving-average-decay store-ema",
    "force": "overwrite",
    "from": "finetune fine-tune finetune-from-model restore-file train-from continue init-from "
    "pretrained pretrained-model load-model",
    "gpus": "devices ngpu num-gpus gpu-ranks world-size nproc-per-node",
    "hypotheses": "hyp hypothesis sys system",
    "input": "src in input-file",
    "keep-best": "keep-best-checkpoints",
    "keep-last": "keep-last-epochs keep-checkpoint keep-last-checkpoints save-total-limit",
    "languages": "source-lang target-lang src-lang tgt-lang lang-pair",
    "last": "num-epoch-checkpoints num-update-checkpoints num-checkpoints",
    "learning-rate": "lr",
    "length-penalty": "lenpen lp normalize alpha length-penalty-alpha",
    "license": "licence",
    "log-steps": "log-interval logging-steps report-every disp-freq",
    "lr-schedule": "lr-scheduler lr-scheduler-type learning-rate-scheduler-type scheduler "
    "lr-decay decay-method lr-decay-strategy",
    "max-epochs": "epochs num-epochs num-train-epochs after-epochs",
    "max-extra-length": "max-len-b max-len max-length max-new-tokens",
    "max-steps": "max-update max-updates train-steps num-steps steps after-batches",
    "max-tokens": "batch batch-size train-batch-size mini-batch",
    "min-length": "min-len",
    "n-best": "nbest num-return-sequences",
    "node-rank": "machine-rank",
    "nodes": "nnodes num-nodes num-machines",
    "num-decoder-layers": "decoder-layers dec-layers dec-depth layers num-layers",
    "num-encoder-layers": "encoder-layers enc-layers enc-depth layers num-layers",
    "num-heads": "heads nhead attention-heads encoder-attention-heads "
    "decoder-attention-heads transformer-heads",
    "optimizer": "optim algorithm",
    "out": "destdir output output-dir save-data",
    "patience": "early-stopping early-stopping-patience",
    "precision": "fp16 bf16 fp32 amp mixed-precision dtype",
    "processes": "num-processes cpu-threads world-size nproc-per-node",
    "reference": "ref references",
    "run": "save-dir output-dir save-model checkpoint-dir resume resume-from-checkpoint model "
    "inputs",
    "subwords": "vocab vocabs srcdict tgtdict src-vocab tgt-vocab joined-dictionary spm-model "
    "sentencepiece-model",
    "search": "sampling do-sample strategy",
    "separate": "no-share-vocab separate-vocab",
    "shard": "fsdp use-fsdp ddp-backend",
    "tensorboard": "tensorboard-logdir tensorboard-log-dir use-tensorboard logdir",
    "test": "testpref test-src",
    "threads": "jobs num-threads num-workers workers",
    "tied-embeddings": "share-all-embeddings share-embeddings tied-embeddings-all "
    "share-decoder-input-output-embed tie-embeddings",
    "top-k": "sampling-topk random-sampling-topk",
    "top-p": "sampling-topp random-sampling-topp",
    "train": "trainpref train-src train-sets",
    "valid": "validpref valid-src valid-sets dev",
    "vocab-size": "nwordssrc nwordstgt bpe-size bpe-tokens num-merges num-symbols vocab",
    "warmup-steps": "warmup warmup-updates lr-warmup num-warmup-steps",
}


def suggest(word: str, known: Iterable[str], words: Mapping[str, str] = WORDS) -> list[str]:
    """Return the known names that a word stands for, abbreviates, or is close to.

    Args:
        word: A flag, argument, setting or command that does not exist.
        known: The names that exist; case, leading dashes and underscores do not matter.
        words: Other words for some names, separated by spaces.
    """
    names = {_bare(name): name for name in known}
    bare = _bare(word)
    return (
        [name for key, name in names.items() if bare in words.get(key, "").split()]
        or [name for key, name in names.items() if key.startswith(bare)]
        or [names[key] for key in get_close_matches(bare, names, n=1)]
    )


def _bare(name: str) -> str:
    return name[:_MAX_LENGTH].lstrip("-").replace("_", "-").lower()
