"""The step that requires the translations of a glossary in outputs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Self

from typing_extensions import override

from tfm.config import LATEST_NORMALIZATION, SearchConfig
from tfm.disk.paths import existing_file
from tfm.errors import DataError
from tfm.features.glossary.finding import Finder, apart, capitalized, folded
from tfm.features.glossary.terms import Term, finder_of, read_terms
from tfm.folders.model_info import ModelInfo
from tfm.reporting import say
from tfm.search.constraints import BanFile, ban_file
from tfm.text.languages import target_language
from tfm.text.tags import split_tag
from tfm.translation.steps import Output, RequiredText, Segment, Step

_State = tuple[Segment, list[Term], str]  # with the terms in it, and the language of its output
_normalize = LATEST_NORMALIZATION.normalize


class Glossary(Step):
    """Finds terms in sources, requires their translations, and reports missing translations.

    Args:
        path: A file of terms, or its terms; None without.
        terms: Further source terms with their translations; they override the file.
        source: Language code of the sources.
        target: Language code of the translations; several languages are joined by +.
        tags: The tags of the model.
        notify: Receives warnings of terms that outputs lack.
    """

    def __init__(
        self,
        path: Path | Finder[Term] | None = None,
        terms: Mapping[str, str] = MappingProxyType({}),
        *,
        source: str,
        target: str,
        tags: Collection[str] = (),
        notify: Callable[[str], None] = say,
    ) -> None:
        self._finders = [finder_of(terms, source)] if terms else []
        if isinstance(path, Finder):
            self._finders.append(path)
        elif path is not None:
            self._finders.append(read_terms(existing_file(path), source, target))
        self._target, self._tags, self._notify = target, tags, notify
        self._num_required = self._num_missing = 0

    @classmethod
    def of(
        cls,
        path: Path | Finder[Term] | None,
        terms: Mapping[str, str],
        search: SearchConfig,
        info: ModelInfo | None,
        notify: Callable[[str], None] = say,
    ) -> Self:
        """Return the step for a model and its search."""
        source, target = ("", "") if info is None else (info.source, info.target)
        target = target_language(target, search.tag)
        tags = () if info is None else info.tags
        step = cls(path, terms, source=source, target=target, tags=tags, notify=notify)
        if search.ban is not None:
            _check_ban(step._finders, ban_file(search.ban))
        return step

    @override
    def before(self, unit: Segment) -> tuple[Sequence[Segment], _State]:
        tag, text = split_tag(_normalize(unit.source), self._tags)
        language = target_language(self._target, tag) if tag else self._target
        found = apart(each for finder in self._finders for each in finder.find_all(text))
        terms = [each.value for each in found]
        if not terms:
            return [unit], (unit, terms, language)
        letter = next(filter(str.isalpha, text), "")
        is_lower = letter != letter.upper()
        required = []
        for targets in (term.targets for term in terms):
            starts = targets if is_lower else tuple(capitalized(t, language) for t in targets)
            required.append(RequiredText(targets, starts))
        return [replace(unit, required=(*unit.required, *required))], (unit, terms, language)

    @override
    def after(self, states: Sequence[_State], outputs: list[list[Output]]) -> list[list[Output]]:
        return [
            self._checked(*state, n_best) if state[1] else n_best
            for state, n_best in zip(states, outputs, strict=True)
        ]

    @override
    def summary(self, since: str) -> str:
        num_placed = self._num_required - self._num_missing
        return f"{num_placed:,} of {self._num_required:,} terms are as in the glossary{since}"

    def _checked(
        self, unit: Segment, terms: list[Term], language: str, n_best: list[Output]
    ) -> list[Output]:
        """Return the outputs with their missing terms; print those that the best output lacks."""
        finder = Finder({each: folded(each) for term in terms for each in term.targets}, language)
        checked = [replace(each, missing_terms=_missing(terms, each, finder)) for each in n_best]
        missing = checked[0].missing_terms or ()
        self._num_required += len(terms)
        self._num_missing += len(missing)
        for source, target in missing:
            self._notify(
                f'warning: {unit.unit} {unit.number:,}: the translation of "{source}" could not be '
                f'"{target}"'
            )
        return checked


def _missing(
    terms: Sequence[Term], output: Output, finder: Finder[str]
) -> tuple[tuple[str, str], ...] | None:
    """Return the terms that an output translates too rarely; None if there are none."""
    found = Counter(each.value for each in finder.find(_normalize(output.text)))
    missing = []
    for term in terms:
        target = next((each for each in map(folded, term.targets) if found[each]), None)
        if target is None:
            missing.append((term.source, term.target))
        else:
            found[target] -= 1
    return tuple(missing) or None


def _check_ban(finders: Iterable[Finder[Term]], banned: BanFile) -> None:
    """Raise DataError if a translation in a glossary contains banned text."""
    banned_text = Finder({phrase: phrase for phrase in banned.phrases}, None)
    for term in chain.from_iterable(finder.values() for finder in finders):
        for target in term.targets:
            found = (each.value for each in banned_text.find(target) if each.value in target)
            if (phrase := next(found, None)) is not None:
                raise DataError(f'{term.place}: "{target}" has "{phrase}", which {banned} bans')
