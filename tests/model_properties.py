"""Properties of any model: each function asserts one."""

import torch
import torch.nn.functional as F

from tfm.vocabulary.subword import PAD


def logits_of(model, source, lengths, target_input):
    return model.logits(model(source, lengths, target_input))


def other_tokens(tokens, vocab_size):
    return 4 + (tokens - 3) % (vocab_size - 4)


def assert_padding_changes_nothing(model, source, lengths, target):
    """Neither the tokens at padding nor the amount of it change logits."""
    padded = logits_of(model, source, lengths, target)
    other_padding = source.clone()
    for row, length in enumerate(lengths):
        other_padding[row, length:] = other_tokens(source[row, length:], padded.size(-1))
        one = slice(row, row + 1)
        single = logits_of(model, source[one, :length], lengths[one], target[one])
        torch.testing.assert_close(padded[one], single)
    for other in (other_padding, F.pad(source, (0, 3), value=PAD)):
        torch.testing.assert_close(logits_of(model, other, lengths, target), padded)


def assert_the_future_is_hidden(model, source, lengths, target):
    """Logits depend on the target up to their position, and on all of that."""
    before = logits_of(model, source, lengths, target)
    for position in range(1, target.size(1)):
        changed = target.clone()
        changed[:, position:] = other_tokens(changed[:, position:], before.size(-1))
        after = logits_of(model, source, lengths, changed)
        torch.testing.assert_close(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position], before[:, position])


def assert_only_training_drops(plain, dropping, batch):
    """A model with dropout equals one with the same weights and without, except in training."""
    expected = logits_of(plain.eval(), *batch)
    for model in (plain.train(), dropping.eval()):
        torch.testing.assert_close(logits_of(model, *batch), expected)
    first, second = (logits_of(dropping.train(), *batch) for _ in range(2))
    assert not torch.allclose(first, second)


def assert_each_parameter_learns(model, batch):
    """Each has a gradient that is not zero."""
    logits_of(model, *batch).sin().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def assert_ties(new_model):
    """Tied embeddings are one parameter, whose memory no other has."""
    sharing = {"three-way": (True, True), "two-way": (False, True), "none": (False, False)}
    for tied, expected in sharing.items():
        model = new_model(tied_embeddings=tied)
        target = model.target_embedding.weight
        assert (target is model.source_embedding.weight, target is model.output_weight) == expected
        parameters = dict(model.named_parameters())
        storages = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
        assert len(storages) == len(parameters)
        shapes = [parameter.shape for parameter in parameters.values()]
        assert shapes.count(target.shape) == 3 - sum(expected)
