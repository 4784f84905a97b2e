"""Step-by-step decoding: its shared cache against teacher forcing of whole prefixes."""

import copy

import pytest
import torch

from tfm.backends.plain import Backend
from tfm.config import TransformerConfig
from tfm.model.build import new_model, use_backend
from tfm.model.cache import StepRows

V = 13
MODELS = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "widths": {"d_k": 3, "d_v": 5},
    "window": {"attention_window": 3},
    "additive": {"attention": "additive"},
    "additive window": {"attention": "additive", "attention_window": 2},
    "learned positions": {"learned_positions": 20},
}
EVERY_MODEL = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
# Hypotheses of each sentence after each step; more than eight do not share a cache.
BEAMS = {
    "greedy": [1] * 14,
    "beam": [4] * 14,
    "wide": [8] * 14,  # fills a cache's first columns
    "widest": [16] * 8,
    "changing": [1, 3, 3, 2, 5, 16, 7, 1, 4, 9, 8],
    "parts and meets": [4, 4, 12, 4, 1, 2, 2, 20, 20, 1],
}
EVERY_BEAM = pytest.mark.parametrize("beam", BEAMS.values(), ids=BEAMS)


class Rounding(Backend):
    """Computes a few rows more than are asked for."""

    def round_up_rows(self, needed):
        return -(-needed // 3) * 3


def transformer(seed=0, **changes):
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=2, d_model=8, d_ff=16, num_heads=2, **changes
    )
    model = new_model(config, source_vocab_size=V, target_vocab_size=V).double().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


class Decoding:
    """Hypotheses with their whole prefixes, beside what a model makes of them step by step."""

    def __init__(self, model, lengths):
        self.model = model
        self.lengths = torch.tensor(lengths)
        self.source = torch.randint(4, V, (len(lengths), max(lengths)))
        self.tokens = torch.randint(4, V, (len(lengths), 1, 1))  # [B, K, t]
        self.state = model.start(self.source, self.lengths)

    def copy(self):
        other = copy.copy(self)
        other.state = copy.deepcopy(self.state)
        return other

    def teacher_forced(self):
        """[B · K, V] logits after each prefix."""
        size = self.tokens.size(1)
        hidden_states = self.model(
            self.source.repeat_interleave(size, dim=0),
            self.lengths.repeat_interleave(size),
            self.tokens.flatten(0, 1),
        )
        return self.model.logits(hidden_states[:, -1])

    def step(self, rows=None):
        """Compare the next logits, of all or of those in rows."""
        found = self.model.step(self.tokens[:, :, -1], self.state, rows)
        expected = self.teacher_forced()
        expected = expected.view(*self.tokens.shape[:2], V) if rows is None else expected[rows]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

    def some_rows(self, share):
        """Of such a share of the hypotheses, but at least one of each sentence; and which."""
        num_sentences, size, _ = self.tokens.shape
        is_asked = torch.rand(num_sentences, size) < share
        is_asked[torch.arange(num_sentences), torch.randint(size, (num_sentences,))] = True
        return is_asked.flatten().nonzero()[:, 0], is_asked

    def go_on(self, num_hypotheses, *, parents=None, sentences=None):
        """Choose at random what goes on, among some parents, in some of the sentences."""
        num_sentences, size, _ = self.tokens.shape
        if sentences is None:
            sentences = torch.arange(num_sentences)
        if parents is None:
            parents = torch.randint(size, (num_sentences, num_hypotheses))
        rows = (torch.arange(num_sentences)[:, None] * size + parents)[sentences]
        newest = torch.randint(4, V, (*rows.shape, 1))
        self.tokens = torch.cat([self.tokens.flatten(0, 1)[rows], newest], dim=2)
        self.source, self.lengths = self.source[sentences], self.lengths[sentences]
        self.state.reorder(rows)


def some_sentences(num_sentences):
    """Two thirds of them, in order."""
    return torch.randperm(num_sentences)[: -(-num_sentences * 2 // 3)].sort().values


@torch.inference_mode()
@EVERY_BEAM
@EVERY_MODEL
def test_whatever_hypotheses_go_on_their_logits_are_those_of_their_whole_prefix(changes, beam):
    decoding = Decoding(transformer(**changes), [5, 2, 6, 1])
    for size in beam:
        decoding.step()
        decoding.go_on(size)
    decoding.step()


@torch.inference_mode()
@pytest.mark.parametrize("padded", [True, False])
@EVERY_BEAM
def test_sentences_may_leave_at_any_step(beam, padded):
    for seed in range(4):
        lengths = [3, 1, 5, 4, 2, 5, 1, 3, 2] if padded else [3] * 9
        decoding = Decoding(transformer(seed, attention_window=[None, 3][seed % 2]), lengths)
        for step, size in enumerate(beam):
            decoding.step()
            leaves = step % 3 == seed % 3
            num_sentences = len(decoding.tokens)
            decoding.go_on(size, sentences=some_sentences(num_sentences) if leaves else None)
        decoding.step()


@torch.inference_mode()
@pytest.mark.parametrize("backend", [Backend(), Rounding()], ids=["plain", "rounding"])
@EVERY_BEAM
@EVERY_MODEL
def test_hypotheses_that_nothing_goes_on_from_need_not_be_computed(changes, beam, backend):
    model = transformer(**changes)
    use_backend(model, backend)
    decoding = Decoding(model, [5, 2, 6, 1])
    for step, size in enumerate(beam):
        rows, is_asked = decoding.some_rows([0.3, 0.9][step % 2])
        decoding.step(rows)
        parents = torch.multinomial(is_asked.double(), size, replacement=True)
        decoding.go_on(size, parents=parents)
    decoding.step()


@torch.inference_mode()
def test_a_sentence_of_which_nothing_is_asked_says_nothing_to_the_others():
    decoding = Decoding(transformer(), [5, 2, 6, 1])
    for _ in range(6):
        size = decoding.tokens.size(1)
        decoding.step(torch.arange(2 * size, 4 * size))
        decoding.go_on(4)


@torch.inference_mode()
@pytest.mark.parametrize("by_itself", [False, True])
@EVERY_MODEL
def test_a_deep_copy_goes_on_independently(changes, by_itself):
    decoding = new_decoding(changes) if by_itself else Decoding(transformer(**changes), [5, 2, 6])
    others = []
    for size in (1, 4, 4, 12, 3, 3, 1):
        decoding.step()
        others.append(decoding.copy())
        decoding.go_on(size)
        for other in others:
            other.go_on(3)
            other.step()


@torch.inference_mode()
def test_another_order_of_hypotheses_that_share_a_cache_copies_none_of_it():
    decoding = Decoding(transformer(), [5, 2, 6])
    decoding.step()
    before = [part.data_ptr() for layer in decoding.state.past for part in layer]
    for size in (4, 4, 2, 8, 4):
        decoding.go_on(size)
        decoding.step()
        assert [part.data_ptr() for layer in decoding.state.past for part in layer] == before


@pytest.mark.parametrize("to_multiple_of", [1, 4, 100])
def test_rows_that_are_computed_are_scattered_back_to_their_hypotheses(to_multiple_of):
    class Sparing(Backend):
        compaction_threshold = 0.7

        def round_up_rows(self, needed):
            return -(-needed // to_multiple_of) * to_multiple_of

    torch.manual_seed(0)
    for _ in range(100):
        num_hypotheses = int(torch.randint(1, 12, ()))
        num_wanted = int(torch.randint(1, num_hypotheses + 1, ()))
        wanted = torch.randperm(num_hypotheses)[:num_wanted].sort().values
        rows = StepRows.of(num_hypotheses, wanted, Sparing())
        x = torch.randn(num_hypotheses, 3)
        selected = rows.select(x)
        assert len(selected) == rows.num_rows
        assert len(selected) % to_multiple_of == 0
        assert torch.equal(rows.select_outputs(selected), x[wanted])
        scattered = rows.scatter(selected)
        assert torch.equal(scattered[wanted], x[wanted])
        is_computed = (scattered == x).all(dim=1)
        assert is_computed.all() == (num_wanted >= 0.7 * num_hypotheses)
        assert not scattered[~is_computed].any()
        assert torch.equal(rows.select(scattered), selected)


# --- a sentence by itself

BY_ITSELF = pytest.mark.parametrize(
    "changes", [MODELS[name] for name in ("post-norm", "pre-norm", "widths", "learned positions")]
)


class FewAtATime(Backend):
    """Has single sentences made ready for, and computes a few rows more than are asked for."""

    single_sentence_fast_path = True

    def round_up_rows(self, needed):
        return -(-needed // 3) * 3


def new_decoding(changes, *, length=5, seed=0):
    model = transformer(seed, **changes)
    use_backend(model, FewAtATime())
    return Decoding(model, [length])


@torch.inference_mode()
@EVERY_BEAM
@EVERY_MODEL
def test_by_itself_it_is_decoded_as_in_company(changes, beam):
    decoding = new_decoding(changes)
    for size in beam:
        decoding.step()
        decoding.go_on(size)
    decoding.step()
    goes_alone = not {"attention", "attention_window"} & changes.keys()
    assert (decoding.state.single is not None) == goes_alone


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_what_leaves_a_full_cache_was_nobodys_past(size):
    """Of hypotheses whose common past grows, and of those that never meet again."""
    decoding = new_decoding({"norm": "pre"}, length=3)
    for step in range(90):
        decoding.step()
        meets = step % 10 == 0 and step < 60
        decoding.go_on(size, parents=None if meets or step == 0 else torch.arange(size)[None])
    own = decoding.tokens.size(2) - 1
    assert decoding.state.single.num_kept <= own * size


@torch.inference_mode()
def test_the_cache_grows_with_what_hypotheses_have_not_in_common():
    decoding = new_decoding({}, length=2)
    for _ in range(150):
        decoding.model.step(decoding.tokens[:, :, -1], decoding.state)
        decoding.go_on(6, parents=torch.zeros(1, 6, dtype=torch.long))
    assert decoding.state.single.num_kept < 2 * 150
    decoding.step()


@torch.inference_mode()
def test_spare_rows_are_numbers_too():
    """What is nobody's may still be looked at: for the scale of int8, say."""
    model = transformer(norm="pre")
    seen = []

    class Watching(FewAtATime):
        def prepack_linear(self, weight, bias):
            product = super().prepack_linear(weight, bias)
            return lambda x, relu: seen.append(x) or product(x, relu)

    use_backend(model, Watching())
    decoding = Decoding(model, [3])
    for size in (3, 3, 2, 1, 2, 3, *[2] * 80, 1, *[1] * 80):
        model.step(decoding.tokens[:, :, -1], decoding.state)
        decoding.go_on(size)
    assert {len(x) for x in seen} == {3}
    assert all(x.isfinite().all() for x in seen)


@torch.inference_mode()
@EVERY_BEAM
@BY_ITSELF
def test_hypotheses_that_nothing_goes_on_from_need_not_be_asked_for(changes, beam):
    decoding = new_decoding(changes)
    for step, size in enumerate(beam):
        rows, is_asked = decoding.some_rows([0.3, 0.9][step % 2])
        decoding.step(rows)
        decoding.go_on(size, parents=torch.multinomial(is_asked.double(), size, replacement=True))
    decoding.step()


@torch.inference_mode()
def test_a_deep_copy_has_the_weights_in_common():
    decoding = new_decoding({})
    decoding.step()
    single, other = decoding.state.single, copy.deepcopy(decoding.state).single
    assert other is not single
    assert other.layers is single.layers


@torch.inference_mode()
def test_sentences_that_have_company_are_not_by_themselves():
    model = transformer()
    use_backend(model, FewAtATime())
    decoding = Decoding(model, [4, 6])
    for size in (3, 3, 1):
        decoding.step()
        decoding.go_on(size)
    assert decoding.state.single is None
