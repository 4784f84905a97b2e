"""Languages: one code, script and name for all codes of a language."""

import pytest

from tfm.text.languages import (
    are_same,
    base_language,
    closest,
    common_codes,
    name_of,
    script_of,
    target_language,
)


@pytest.mark.parametrize(
    ("codes", "base"),
    [
        ("zh ZH zho chi cmn zho_Hans cmn-Hans zh-CN zh_TW zh-hant-hk zh_simplified", "zh"),
        ("ja jpn jpn_Jpan ja-JP", "ja"),
        ("en eng EN en_GB eng_Latn", "en"),
        ("de deu ger de-AT", "de"),
        ("sr srp sr-Cyrl sr_Latn", "sr"),
        ("ne npi npi_Deva", "ne"),
        ("ar arb arb_Arab ara", "ar"),
        ("tl tgl fil", "tl"),
        ("he iw heb", "he"),
        ("yue yue_Hant", "yue"),
        ("source SOURCE", "source"),
        ("en+fr", "en+fr"),
        ("", ""),
    ],
)
def test_all_codes_of_a_language_have_one_base(codes, base):
    assert {base_language(code) for code in codes.split(" ")} == {base}


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("zh", "Hans"),
        ("zh-TW", "Hant"),
        ("zho_Hant", "Hant"),
        ("yue", "Hant"),
        ("jpn", "Jpan"),
        ("sr", "Cyrl"),
        ("sr_Latn", "Latn"),
        ("uz-Cyrl", "Cyrl"),
        ("arz", "Arab"),
        ("grc", "Grek"),
        ("pa-PK", "Arab"),
        ("tlh", ""),
        ("source", ""),
        ("zh+en", ""),
    ],
)
def test_the_script_is_the_one_that_is_named_or_the_usual_one(code, script):
    assert script_of(code) == script


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("zho_Hans", "Chinese"),
        ("zho_Hant", "Chinese (Hant)"),
        ("eng_Latn", "English"),
        ("pt_BR", "Portuguese (BR)"),
        ("tlh", "tlh"),
        ("source", "source"),
    ],
)
def test_a_name_tells_what_is_unusual_about_a_language(code, name):
    assert name_of(code) == name


@pytest.mark.parametrize(
    ("code", "candidates", "closest_code"),
    [
        ("zh", "en zho_Hant", "zho_Hant"),
        ("zh", "zho_Hant zho_Hans", "zho_Hans"),
        ("zh-TW", "zho_Hans zho_Hant", "zho_Hant"),
        ("zh-Hant", "zho_Hans", None),
        ("sr-Cyrl", "sr_Latn sr", "sr"),
        ("pt", "pt-BR pt-PT", "pt-BR"),
        ("pt-PT", "pt-BR pt-PT", "pt-PT"),
        ("no", "nob", "nob"),
        ("fr", "en de", None),
    ],
)
def test_the_closest_code_is_for_the_same_language(code, candidates, closest_code):
    assert closest(code, candidates.split()) == closest_code


@pytest.mark.parametrize(
    ("codes", "common"),
    [
        ("en de", "en de"),
        ("eng zho_Hans kmr_Latn", "en zh ku"),
        ("zho_Hant zho_Hans", "zh-Hant zh"),
        ("sr_Latn zh-TW", "sr-Latn zh-Hant"),
        ("en eng DEU de", "en en de de"),
        ("pt_BR", "pt"),
        ("pt_BR pt_PT", "pt_BR pt_PT"),
        ("source", "source"),
    ],
)
def test_common_codes_are_short_and_tell_languages_apart(codes, common):
    assert [*common_codes(codes.split()).values()] == common.split()


def test_sides_are_the_same_if_all_their_languages_are():
    assert are_same("zho_Hans+eng", "en+zh")
    assert not are_same("zho_Hant", "zh")
    assert not are_same("en", "en+zh")


def test_a_tag_chooses_among_the_target_languages():
    assert target_language("de+zho_Hans", "<2zh>") == "zho_Hans"
    assert target_language("de+zho_Hans", "<bt>") == "de+zho_Hans"
    assert target_language("de+fr", "<bfr>") == "de+fr"
    assert target_language("de+zho_Hans", None) == "de+zho_Hans"
