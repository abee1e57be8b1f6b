import itertools
import pickle
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyharness.scoring import CharacterCounts, Counts, ScriptCounts, character_counts, counts, normaliser, script_counts

LANGUAGES = ["ru", "tr", "az", "uz", "fr", "hi", "ja", "th"]
APOSTROPHES = "\u0027\u2018\u2019\u02bb\u02bc\u0060\u00b4\u2032"
# what the rules are about: casing of i, ё, apostrophes, marks of several scripts, joiners, and plain text around them
DELICATE = (
    "iIıİоеёЁßςogOG aя1-"
    + APOSTROPHES
    + "\u0301\u0307\u0308\u0323\u0327\u05b4\u064e\u0e33\u094d\u200b\u200d\ufe0fก가が한"
)


def test_names_tell_which_normalisation_was_used():
    assert normaliser("en").name.startswith("whisper-english/0.")
    assert normaliser("EN") == normaliser("en")
    assert normaliser("ru").name == "basic-unicode/2"
    assert normaliser("ru", strip_diacritics=True).name == "basic-unicode/2+strip-diacritics"
    assert normaliser("ja").name == "basic-unicode/2+characters"


def test_english_reads_contractions_and_numbers():
    assert normaliser("en")("Mr. Smith can't pay twenty one.") == "mister smith can not pay 21"


@pytest.mark.parametrize("apostrophe", APOSTROPHES)
def test_english_contractions_are_read_with_every_apostrophe(apostrophe):
    english = normaliser("en")
    written = f"I don{apostrophe}t think it{apostrophe}s John{apostrophe}s."
    assert english(written) == english("I don't think it's John's.") == "i do not think it is john is"
    if apostrophe not in "\u02bb\u02bc":  # letters, no quotes
        assert english(f"say {apostrophe}hello{apostrophe} now") == "say hello now"


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
        ("tr", "İstanbul".lower() + " DİYARBAKIR", "istanbul diyarbakır"),
        ("az", "QIZIL", "qızıl"),
        ("az", unicodedata.normalize("NFD", "İlk işıq"), "ilk işıq"),
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


@pytest.mark.parametrize("apostrophe", APOSTROPHES)
def test_every_uzbek_apostrophe_is_the_same_letter(apostrophe):
    uzbek = normaliser("uz")
    assert uzbek(f"O{apostrophe}zbek togʻ ma{apostrophe}no") == "oʻzbek togʻ maʻno"
    assert uzbek(f"BOG{apostrophe} G{apostrophe}alaba") == "bogʻ gʻalaba"
    assert uzbek(f"tog{apostrophe}, {apostrophe}bir{apostrophe}") == "togʻ bir"


@pytest.mark.parametrize("apostrophe", APOSTROPHES)
def test_elsewhere_every_apostrophe_is_a_space(apostrophe):
    assert normaliser("uk")(f"м{apostrophe}ята") == "м ята"


def test_strip_diacritics_spares_signs_that_are_letters():
    assert normaliser("fr", strip_diacritics=True)("Élève çà") == "eleve ca"
    assert normaliser("ar", strip_diacritics=True)("كَتَبَ") == "كتب"
    for language, word in (("hi", "हिन्दी"), ("th", "น้ ำ"), ("ja", "が"), ("ko", "한국")):
        assert normaliser(language, strip_diacritics=True)(word) == word


def test_spanish_accents_may_be_ignored():
    without = normaliser("es", strip_diacritics=True)
    assert counts("Numero de telefono", "Número de teléfono", without).errors == 0
    assert counts("Numero de telefono", "Número de teléfono", normaliser("es")).substitutions == 2


@pytest.mark.parametrize("language", ["ru", "tr", "hi"])
def test_marks_never_end_a_word_and_punctuation_of_every_script_does(language):
    function = normaliser(language)
    for char in map(chr, range(sys.maxunicode + 1)):
        kind = unicodedata.category(char)[0]
        if kind == "M":
            assert len(function(f"б{char}в").split()) == 1, ascii(char)
        elif kind in "PSZ":
            assert len(function(f"б{char}в").split()) == 2, ascii(char)


@given(st.sampled_from(LANGUAGES), st.booleans(), st.text() | st.text(DELICATE, max_size=12))
def test_normalising_twice_changes_nothing(language, strip_diacritics, text):
    function = normaliser(language, strip_diacritics)
    assert function(function(text)) == function(text)


@pytest.mark.parametrize(
    ("language", "letters"), [("tr", "iIı\u0307\u0301"), ("ru", "еЁ\u0308\u0306\u0323"), ("uz", "og a'\u0301")]
)
def test_every_short_text_settles_in_one_pass(language, letters):
    function = normaliser(language)
    for text in map("".join, itertools.product(letters, repeat=5)):
        assert function(function(text)) == function(text), ascii(text)


@given(st.sampled_from(LANGUAGES), st.text() | st.text(DELICATE, max_size=12))
def test_composed_and_decomposed_spellings_score_alike(language, text):
    function = normaliser(language)
    assert function(unicodedata.normalize("NFD", text)) == function(unicodedata.normalize("NFC", text))


def test_counts_by_hand():
    english = normaliser("en")
    said, heard = "one small cat sat down on the red mat", "one small dog sat down the red mat again"
    assert counts(said, heard, english) == Counts(1, 1, 1, 9, 9)
    assert counts("Yes.", "yes", english).errors == 0


WORDS = st.lists(st.sampled_from("abc"), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_swapped_texts_have_as_many_errors_with_deletions_for_insertions(one, other):
    there, back = counts(one, other, normaliser("ru")), counts(other, one, normaliser("ru"))
    assert there.errors == back.errors
    assert there.deletions - there.insertions == back.insertions - back.deletions
    assert (there.reference_words, there.hypothesis_words) == (back.hypothesis_words, back.reference_words)


@given(WORDS, WORDS)
def test_what_is_not_deleted_or_substituted_is_in_both(one, other):
    edits = counts(one, other, normaliser("ru"))
    right = edits.reference_words - edits.deletions - edits.substitutions
    assert right == edits.hypothesis_words - edits.insertions - edits.substitutions >= 0


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


@pytest.mark.parametrize(
    ("language", "reference", "hypothesis", "expected"),
    [
        ("ru", "Кошка спит.", "кошки спят", CharacterCounts(10, 2)),
        ("ru", "Ещё", "еще", CharacterCounts(3, 0)),
        ("it", "al fine", "alfine!", CharacterCounts(7, 1)),
        ("ja", "東京へ。", "東京 に行く", CharacterCounts(3, 3)),
        ("uz", "o‘zbek", "o'zbek", CharacterCounts(6, 0)),
        ("ru", "", "да нет", CharacterCounts(0, 6)),
        ("ru", "да", "...", CharacterCounts(2, 2)),
        ("ru", "", "", CharacterCounts(0, 0)),
    ],
)
def test_character_counts_by_hand(language, reference, hypothesis, expected):
    assert character_counts(reference, hypothesis, normaliser(language)) == expected


@given(WORDS, WORDS)
def test_character_errors_are_the_same_both_ways(one, other):
    there, back = (character_counts(*texts, normaliser("ru")) for texts in ((one, other), (other, one)))
    assert there.character_errors == back.character_errors
    assert there.character_errors <= max(there.characters, back.characters)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("uz", "O‘zbekiston — go‘zal yurt!", ScriptCounts(3, 0, 0)),
        ("uz", "Ўзбекистон гўзал юрт", ScriptCounts(0, 3, 0)),
        ("uz", "Oʻzbekiston Ўзбекистон 1991 東京", ScriptCounts(1, 1, 2)),
        ("uz", "сoat", ScriptCounts(0, 0, 1)),  # a Cyrillic с in a Latin word
        ("uz", "COVID-19 5G", ScriptCounts(2, 0, 1)),
        ("uz", "...", ScriptCounts(0, 0, 0)),
        ("en", "It's fine", ScriptCounts(3, 0, 0)),
    ],
)
def test_words_by_script(language, text, expected):
    assert script_counts(text, normaliser(language)) == expected


def test_bracketed_model_output_is_an_insertion_outside_english():
    assert counts("да", "[Музыка] да", normaliser("ru")).insertions == 1


@pytest.mark.parametrize("language", ["en", "uz", "ja"])
def test_a_normaliser_travels_to_worker_processes(language):
    copy = pickle.loads(pickle.dumps(normaliser(language)))
    assert copy == normaliser(language) and copy("A b") == normaliser(language)("A b")
