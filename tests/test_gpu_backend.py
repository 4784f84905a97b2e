"""Models with the GPU backend equal those with the plain one: on a GPU or in Triton's interpreter.

The interpreter multiplies bf16 matrices wrongly, so it tests half precision in fp16.
"""

from itertools import islice

import pytest
import torch
from replays import record
from triton_device import DEVICE, FP32_ERROR

from tfm.backends import gpu
from tfm.backends.cross_entropy import PADDING, label_smoothed_cross_entropy
from tfm.backends.dropout import drop_threshold, keep_scale
from tfm.backends.gpu import GpuBackend
from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN
from tfm.config import TransformerConfig
from tfm.data import batching
from tfm.data.batching import Batch
from tfm.data.dataset import ParallelDataset
from tfm.device.compute import Compute
from tfm.model.build import new_model, use_backend
from tfm.model.cost import model_cost
from tfm.training import gradients as gradients_module
from tfm.training import trainer as trainer_module
from tfm.training.loss import BatchLoss
from tfm.training.optimizer import cast_weights
from tfm.training.trainer import Trainer

NO_DROPOUT = {"dropout": 0, "embedding_dropout": 0, "attention_dropout": 0, "relu_dropout": 0}
SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 24}
MODELS = [
    {},
    {"norm": "pre"},
    {"attention": "additive"},
    {"attention_window": 2},
    {"d_k": 3, "d_v": 5},
    {"tied_embeddings": "none"},
]
SOURCE_LENGTHS, TARGET_LENGTHS = [4, 9, 1], [6, 2, 11]
N, D, V = 9, 16, 21  # rows, width and classes of the loss by itself


def new_backend(seed=0, dtype=torch.float32):
    backend = GpuBackend(dtype)
    backend.seed(seed)
    return backend


def new_packing(lengths, spare=3):
    return Packing(torch.tensor(lengths), sum(lengths) + spare, DEVICE)


def new_model_and_tokens(**changes):
    torch.manual_seed(0)
    config = TransformerConfig(**{**SHAPE, "num_heads": 2, **NO_DROPOUT, **changes})
    model = new_model(config, source_vocab_size=20, target_vocab_size=20).to(DEVICE)
    sizes = (sum(SOURCE_LENGTHS) + 3, sum(TARGET_LENGTHS) + 3)
    return model, [torch.randint(4, 20, (size,), device=DEVICE) for size in sizes]


def packed_and_padded(model, source, target):
    """Outputs for the same pairs, packed and padded, both without spare rows."""
    sources, targets = new_packing(SOURCE_LENGTHS), new_packing(TARGET_LENGTHS)
    use_backend(model, new_backend())
    packed = model.forward_packed(source, sources, target, targets)
    use_backend(model, PLAIN)
    padded = model(sources.pad(source), sources.device_lengths, targets.pad(target))
    return packed[: targets.num_tokens], targets.pack(padded)[: targets.num_tokens]


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_packed_and_padded_batches_give_the_same_outputs_and_gradients(changes):
    model, tokens = new_model_and_tokens(**changes)
    outputs = packed_and_padded(model, *tokens)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    output_weights = torch.randn_like(outputs[1])
    gradients = [
        torch.autograd.grad(
            (output * output_weights).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        for output in outputs
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert float((ours - theirs).norm()) <= 1e-4 * float(theirs.norm()) + 1e-5


def half_precision_model_and_tokens(**changes):
    """The model of `new_model_and_tokens` with fp16 weights, and its outputs before in fp32."""
    model, tokens = new_model_and_tokens(**changes)
    expected = packed_and_padded(model, *tokens)[1].detach()
    cast_weights(model, torch.float16)
    use_backend(model, new_backend(dtype=torch.float16))
    return model, tokens, expected


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_weights_and_activations_have_the_same_dtype(norm):
    model, (source, target), expected = half_precision_model_and_tokens(norm=norm)
    activations = []
    for layer in (*model.encoder, *model.decoder):
        layer.register_forward_hook(lambda _, inputs, out: activations.extend((inputs[0], out)))
    sources, targets = new_packing(SOURCE_LENGTHS), new_packing(TARGET_LENGTHS)
    found = model.forward_packed(source, sources, target, targets)
    assert {x.dtype for x in (*activations, found)} == {torch.float16}
    torch.testing.assert_close(found[: targets.num_tokens].float(), expected, rtol=0.03, atol=0.03)


def test_the_loss_of_half_precision_sums_the_gradient_of_chunks_in_fp32(monkeypatch):
    monkeypatch.setattr(gpu, "GPU_CHUNK_ELEMENTS", 2 * V)
    hidden_states, weight, targets = loss_inputs()
    arguments = {"smoothing": 0.1, "num_tokens": N}
    half = [x.detach().half().requires_grad_() for x in (hidden_states, weight)]
    loss, _ = new_backend(dtype=torch.float16).label_smoothed_cross_entropy(
        *half, targets, **arguments
    )
    exact = [x.detach().float().requires_grad_() for x in half]
    expected, _ = label_smoothed_cross_entropy(*exact, targets, **arguments)
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
    gradients = torch.autograd.grad(loss, half)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        assert ours.dtype == torch.float16
        torch.testing.assert_close(ours.float(), theirs, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_residual_sums_compile_into_one_graph_for_all_numbers_of_rows(dropout):
    from torch._dynamo.testing import CompileCounterWithBackend  # imports Triton

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    weight, bias = (torch.randn(D, device=DEVICE, requires_grad=True) for _ in range(2))
    for function, extra in ((gpu.add_dropout, ()), (gpu.add_dropout_norm, (weight, bias, 1e-5))):
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        counter.clear()
        for num_rows in (5, 9, 14, 27):
            results = []
            for each in (function, compiled):
                torch.manual_seed(num_rows)
                inputs = [torch.randn(num_rows, D, device=DEVICE) for _ in range(2)]
                inputs = [x.requires_grad_() for x in inputs]
                out = each(*inputs, dropout, *extra)
                leaves = [*inputs, *extra[:2]]
                results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
            torch.testing.assert_close(*results)
        assert counter.frame_count == 2  # for the first number of rows, then for all


def attended_values(backend, *, dropout, cross_attention=False, num_heads=8, width=8):
    """Attend with equal weights to values of 1: [rows, h, width] fractions of kept weights."""
    packing = new_packing([40, 24])
    projected = torch.zeros(packing.num_rows, 3, num_heads, width, device=DEVICE)
    projected[:, 2] = 1
    if cross_attention:
        attended = backend.packed_attention.attend(
            [projected[:, 0].flatten(1), projected[:, 1:].flatten(1)],
            packing,
            packing,
            num_heads=num_heads,
            causal=False,
            dropout=dropout,
        )
    else:
        attended = backend.packed_attention.attend(
            [projected.flatten(1)],
            packing,
            packing,
            num_heads=num_heads,
            causal=False,
            dropout=dropout,
        )
    return attended.view(packing.num_rows, num_heads, width)[: packing.num_tokens]


@pytest.mark.parametrize("cross_attention", [False, True])
def test_the_rate_and_the_scale_of_kept_attention_weights_are_right(cross_attention):
    dropout = 0.2
    kept_fraction = attended_values(
        new_backend(), dropout=dropout, cross_attention=cross_attention
    )[..., 0]
    lengths = torch.tensor([40] * 40 + [24] * 24, device=DEVICE)[:, None]
    counts = kept_fraction * lengths / keep_scale(dropout)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-3)
    total = 8 * (40**2 + 24**2)
    rate = 1 - drop_threshold(dropout) / 2**16
    four_sigma = 4 * (total * rate * (1 - rate)) ** 0.5
    assert abs(float(counts.sum()) - total * rate) < four_sigma


def test_each_use_of_dropout_draws_anew_and_equal_seeds_draw_equally(monkeypatch):
    monkeypatch.setattr(gpu, "_NUM_SEEDS", 2)  # so that they run out
    backend = new_backend(5)
    draws = [attended_values(backend, dropout=0.3, cross_attention=bool(n % 2)) for n in range(5)]
    for index, draw in enumerate(draws):
        assert not any(torch.equal(draw, other) for other in draws[:index])
    backend.seed(5)
    again = [attended_values(backend, dropout=0.3, cross_attention=bool(n % 2)) for n in range(5)]
    assert all(map(torch.equal, draws, again))
    backend.seed(6)
    assert not torch.equal(attended_values(backend, dropout=0.3), draws[0])


def test_without_dropout_no_random_numbers_are_drawn():
    backend, state = new_backend(), torch.random.get_rng_state()
    attended_values(backend, dropout=0.0)
    assert torch.equal(torch.random.get_rng_state(), state)


def loss_inputs():
    torch.manual_seed(0)
    hidden_states = torch.randn(N, D, device=DEVICE, requires_grad=True)
    weight = torch.randn(V, D, device=DEVICE, requires_grad=True)
    return hidden_states, weight, torch.randint(V, (N,), device=DEVICE)


@pytest.mark.parametrize("rows_per_chunk", [4, N])
@pytest.mark.parametrize("num_tokens", [7, N])
def test_loss_and_gradients_equal_the_plain_ones_for_any_chunk_size(
    rows_per_chunk, num_tokens, monkeypatch
):
    monkeypatch.setattr(gpu, "GPU_CHUNK_ELEMENTS", rows_per_chunk * V)
    hidden_states, weight, targets = loss_inputs()
    targets[num_tokens:] = PADDING
    losses = [
        function(hidden_states, weight, targets, smoothing=0.1, num_tokens=num_tokens)
        for function in (
            new_backend().label_smoothed_cross_entropy,
            label_smoothed_cross_entropy,
        )
    ]
    torch.testing.assert_close(*losses, rtol=FP32_ERROR, atol=1e-5)
    gradients = [
        torch.autograd.grad(smoothed / 3, (hidden_states, weight)) for smoothed, _ in losses
    ]
    torch.testing.assert_close(*gradients, rtol=FP32_ERROR, atol=1e-5)
    assert not gradients[0][0][num_tokens:].any()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_loss_is_computed_without_gradients_in_no_grad_mode(context):
    hidden_states, weight, targets = loss_inputs()
    loss = new_backend().label_smoothed_cross_entropy
    expected, nll = loss(hidden_states, weight, targets, smoothing=0.1, num_tokens=N)
    assert not nll.requires_grad
    with context():
        found, _ = loss(hidden_states, weight, targets, smoothing=0.1, num_tokens=N)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach())


def test_content_of_spare_rows_does_not_matter():
    model, (source, target) = new_model_and_tokens()
    use_backend(model, new_backend())
    num_tokens = sum(TARGET_LENGTHS)
    results = []
    for spare in (4, 19):
        source[sum(SOURCE_LENGTHS) :] = spare
        target[num_tokens:] = spare
        batch = Batch(
            source=source,
            sources=new_packing(SOURCE_LENGTHS),
            target_input=target,
            target_output=target.roll(-1),
            targets=new_packing(TARGET_LENGTHS),
        )
        batch.target_output[num_tokens - 1] = 4
        batch.target_output[num_tokens:] = PADDING
        loss, _ = BatchLoss(model, label_smoothing=0.1)(batch)
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*results)


def test_training_has_the_losses_of_the_plain_backend(data_dir, tiny_run, monkeypatch):
    data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))
    run = tiny_run(model=NO_DROPOUT, batching={"batch_tokens": 150}, optimizer={"warmup_steps": 4})
    compute = Compute(DEVICE, torch.float32)
    cost = model_cost(run.model, source_vocab_size=400, target_vocab_size=400, max_tokens=1000)
    losses = []
    for backend in (PLAIN, new_backend()):
        monkeypatch.setattr(trainer_module, "training_backend", lambda *_, backend=backend: backend)
        torch.manual_seed(1)
        model = new_model(run.model, source_vocab_size=400, target_vocab_size=400).to(DEVICE)
        trainer = Trainer(model, data, run, compute, cost=cost)
        batch = next(trainer.batches())
        losses.append([trainer.step(batch)[0].report().loss for _ in range(4)])
    assert losses[0][0] - losses[0][-1] > 0.5
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_steps_of_cuda_graphs_equal_those_without(data_dir, tiny_run, monkeypatch):
    def recorded(function, *, shares_memory_of=None):
        with torch.random.fork_rng(devices=[]):  # a capture draws no numbers
            return record(function)

    if DEVICE.type == "cpu":
        monkeypatch.setattr(gradients_module, "captured", recorded)
    monkeypatch.setattr(batching, "round_up_rows", lambda num_tokens: (num_tokens // 64 + 1) * 64)
    monkeypatch.setattr(trainer_module, "training_backend", lambda *_: new_backend())
    data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))
    cost = model_cost(tiny_run().model, source_vocab_size=400, target_vocab_size=400, max_tokens=9)
    results = []
    for cuda_graphs in (True, False):
        run = tiny_run(
            model={"dropout": 0.1, "attention_dropout": 0.1},
            batching={"batch_tokens": 100, "max_tokens": 1_000},
            optimizer={"warmup_steps": 4},
            training={"cuda_graphs": cuda_graphs},
        )
        torch.manual_seed(1)
        model = new_model(run.model, source_vocab_size=400, target_vocab_size=400).to(DEVICE)
        trainer = Trainer(model, data, run, Compute(DEVICE, torch.float32), cost=cost)
        pending = [trainer.step(batch)[0] for batch in islice(trainer.batches(), 8)]
        results.append([each.report().loss for each in pending])
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_no_operation_synchronizes_or_mixes_devices():
    # Meta tensors have no data: reading it fails, and so does mixing devices.
    meta = torch.device("meta")
    model, _ = new_model_and_tokens(dropout=0.1, attention_dropout=0.1)
    model.to(meta)
    backend = new_backend()
    use_backend(model, backend)
    sources, targets = (
        Packing(torch.tensor(lengths), sum(lengths) + 3, meta)
        for lengths in (SOURCE_LENGTHS, TARGET_LENGTHS)
    )
    source, target = (
        torch.zeros(packing.num_rows, dtype=torch.int64, device=meta)
        for packing in (sources, targets)
    )
    loss, _ = backend.label_smoothed_cross_entropy(
        model.forward_packed(source, sources, target, targets),
        model.output_weight,
        target,
        smoothing=0.1,
        num_tokens=targets.num_tokens,
    )
    loss.backward()
    assert all(parameter.grad.device == meta for parameter in model.parameters())
    assert backend.packed_attention._draw_seed(meta).device == meta
