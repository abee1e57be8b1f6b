import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.scoring import Counts, counts, normaliser

LANGUAGES = ["ru", "tr", "az", "uz", "fr", "hi", "ja", "th"]


def test_names_tell_which_normalisation_was_used():
    assert normaliser("en").name.startswith("whisper-english/0.")
    assert normaliser("EN") == normaliser("en")
    assert normaliser("ru").name == "basic-unicode/1"
    assert normaliser("ru", strip_diacritics=True).name == "basic-unicode/1+strip-diacritics"
    assert normaliser("ja").name == "basic-unicode/1+characters"


def test_english_reads_contractions_and_numbers():
    assert normaliser("en")("Mr. Smith can't pay twenty one.") == "mister smith can not pay 21"


@pytest.mark.parametrize("ellipsis", ["...", "…", " . . .", " %", " $"])
def test_english_symbols_alone_are_no_words(ellipsis):
    assert normaliser("en")(f"So he went{ellipsis}") == "so he went"
    assert normaliser("en")("It costs $5.50, or 3%.") == "it costs $5.50 or 3%"


@pytest.mark.parametrize(
    ("language", "raw", "expected"),
    [
        ("ru", "Ещё раз — «ёлка»!", "еще раз елка"),
        ("be", "Ён", "ён"),
        ("tr", "IŞIK İstanbul", "ışık istanbul"),
        ("tr", unicodedata.normalize("NFD", "İstanbul"), "istanbul"),
        ("az", "QIZIL", "qızıl"),
        ("de", "STRASSE Straße", "strasse strasse"),
        ("fr", "D’accord, d'accès.", "d accord d accès"),
        ("es", "¿Qué… 5%?", "qué 5"),
        ("hi", "हिन्दी, नमस्ते।", "हिन्दी नमस्ते"),
        ("ar", "مرحبا، كيف؟", "مرحبا كيف"),
        ("fa", "می\u200cروم", "میروم"),
        ("km", "ខ្ញុំ\u200bទៅ", "ខ្ញុំ ទៅ"),
        ("ru", "[Музыка] да", "музыка да"),
        ("pt", "❤\ufe0f sim 1\ufe0f\u20e3", "sim 1\u20e3"),
        ("ja", "東京へ。行く", "東 京 へ 行 く"),
        ("th", "น้ำ", "น้ ำ"),
        ("it", "", ""),
    ],
)
def test_basic_normalisation_of_each_script(language, raw, expected):
    assert normaliser(language)(raw) == expected


@pytest.mark.parametrize("apostrophe", "\u0027\u2018\u2019\u02bb\u02bc\u0060\u00b4\u2032")
def test_every_uzbek_apostrophe_is_the_same_letter(apostrophe):
    uzbek = normaliser("uz")
    assert uzbek(f"O{apostrophe}zbek togʻ ma{apostrophe}no") == "oʻzbek togʻ maʻno"
    assert uzbek(f"tog{apostrophe}, {apostrophe}bir{apostrophe}") == "togʻ bir"


@pytest.mark.parametrize("apostrophe", "\u0027\u2018\u2019\u02bb\u02bc\u0060\u00b4\u2032")
def test_elsewhere_every_apostrophe_is_a_space(apostrophe):
    assert normaliser("uk")(f"м{apostrophe}ята") == "м ята"


def test_strip_diacritics_spares_signs_that_are_letters():
    assert normaliser("fr", strip_diacritics=True)("Élève çà") == "eleve ca"
    assert normaliser("ar", strip_diacritics=True)("كَتَبَ") == "كتب"
    for language, word in (("hi", "हिन्दी"), ("th", "น้ ำ"), ("ja", "が"), ("ko", "한국")):
        assert normaliser(language, strip_diacritics=True)(word) == word


@given(st.sampled_from(LANGUAGES), st.booleans(), st.text())
def test_normalising_twice_changes_nothing(language, strip_diacritics, text):
    function = normaliser(language, strip_diacritics)
    assert function(function(text)) == function(text)


@given(st.sampled_from(LANGUAGES), st.text())
def test_composed_and_decomposed_spellings_score_alike(language, text):
    function = normaliser(language)
    assert function(unicodedata.normalize("NFD", text)) == function(unicodedata.normalize("NFC", text))


@given(st.text("'ʻʼ`og a\u0301", max_size=12))
def test_uzbek_apostrophes_settle_in_one_pass(text):
    function = normaliser("uz")
    assert function(function(text)) == function(text)


def test_counts_by_hand():
    english = normaliser("en")
    said, heard = "one small cat sat down on the red mat", "one small dog sat down the red mat again"
    assert counts(said, heard, english) == Counts(1, 1, 1, 9, 9)
    assert counts("Yes.", "yes", english).errors == 0


def test_looping_output_counts_every_repetition():
    looped = counts("hello there", "hello there " * 50, normaliser("en"))
    assert looped == Counts(0, 0, 98, 2, 100)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("", "two words", Counts(0, 0, 2, 0, 2)),
        ("two words", "...", Counts(0, 2, 0, 2, 0)),
        ("", "", Counts(0, 0, 0, 0, 0)),
    ],
)
def test_empty_text_is_counted_not_refused(reference, hypothesis, expected):
    assert counts(reference, hypothesis, normaliser("en")) == expected


def test_bracketed_model_output_is_an_insertion_outside_english():
    assert counts("да", "[Музыка] да", normaliser("ru")).insertions == 1


@pytest.mark.parametrize("language", ["en", "uz", "ja"])
def test_a_normaliser_travels_to_worker_processes(language):
    copy = pickle.loads(pickle.dumps(normaliser(language)))
    assert copy == normaliser(language) and copy("A b") == normaliser(language)("A b")
