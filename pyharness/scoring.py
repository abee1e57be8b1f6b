"""Word and character counts on normalised text. Raw text goes in, counts come out; nothing stored is ever altered."""

import functools
import importlib.metadata
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

import jiwer

# Whisper's authors report character errors for languages written without spaces (Radford et al. 2022, §3.4).
_UNSPACED = frozenset({"zh", "yue", "ja", "th", "lo", "my"})
_TURKIC_CASING = frozenset({"tr", "az"})
_TURKIC_I = str.maketrans({"I": "ı", "İ": "i"})
_DOTTED_I = re.compile("i\u0307+")  # what lower-casing İ by the rules of other languages leaves

_UZBEK_LETTER = "\u02bb"
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bb\u02bc\u0060\u00b4\u2032", "'"))
_INNER_APOSTROPHE = re.compile(r"(?<=\w)[\u2018\u2019\u02bb\u02bc\u0060\u00b4\u2032](?=\w)")
_UZBEK_APOSTROPHE = re.compile(r"(?<=[og])'|(?<=\w)'(?=\w)")


@dataclass(frozen=True)
class Normaliser:
    """A named function raw text -> text for scoring. The name goes into every result that used it."""

    name: str
    function: Callable[[str], str] = field(repr=False, compare=False)
    unspaced: bool = False  # its "words" are characters

    def __call__(self, text: str) -> str:
        return self.function(text)


@dataclass(frozen=True)
class Counts:
    """Word counts of one clip, all >= 0. Sum them over clips; never average the rates."""

    substitutions: int
    deletions: int
    insertions: int
    reference_words: int
    hypothesis_words: int

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions


@dataclass(frozen=True)
class CharacterCounts:
    """Character counts of one clip, >= 0; sum them like word counts. CER = character_errors / characters."""

    characters: int  # of the reference
    character_errors: int


@dataclass(frozen=True)
class ScriptCounts:
    """Words of one text by script."""

    latin_words: int
    cyrillic_words: int
    other_words: int  # in another script, in several scripts at once, or without letters


def normaliser(language: str, strip_diacritics: bool = False) -> Normaliser:
    """The normaliser for a language code such as ``en`` or ``uz`` (case is ignored).

    English: Whisper's own, which spells out contractions, reads numbers and drops text in brackets; after it
    symbols that stand alone are dropped, because it turns a closing "..." into a word ".", and before it an
    apostrophe of another kind inside a word becomes ', the only one that it knows.
    Other languages: ours, see `_basic`; bracketed text stays and so counts as inserted words. Languages
    written without spaces are split into characters, so that their "words" are characters.
    ``strip_diacritics`` also removes accents and the vowel points of Arabic and Hebrew (English: no effect,
    Whisper's normaliser always does).
    """
    language = language.lower()
    if language == "en":
        version = importlib.metadata.version("whisper-normalizer")
        return Normaliser(f"whisper-english/{version}+no-lone-symbols+apostrophes", _english)

    unspaced = language in _UNSPACED
    name = "basic-unicode/2" + "+strip-diacritics" * strip_diacritics + "+characters" * unspaced
    function = _basic_characters if unspaced else _basic
    options = {"language": language, "strip_diacritics": strip_diacritics}
    return Normaliser(name, functools.partial(function, **options), unspaced)


def counts(reference: str, hypothesis: str, normaliser: Normaliser) -> Counts:
    """Fewest word edits that turn the normalised reference into the normalised hypothesis.

    Either text may be empty: an empty reference makes every hypothesis word an insertion.
    """
    reference, hypothesis = normaliser(reference), normaliser(hypothesis)
    reference_words, hypothesis_words = len(reference.split()), len(hypothesis.split())
    if not reference_words or not hypothesis_words:
        return Counts(0, reference_words, hypothesis_words, reference_words, hypothesis_words)

    edits = jiwer.process_words(reference, hypothesis)
    return Counts(edits.substitutions, edits.deletions, edits.insertions, reference_words, hypothesis_words)


def character_counts(reference: str, hypothesis: str, normaliser: Normaliser) -> CharacterCounts:
    """Fewest character edits between the normalised texts. Either may be empty.

    Characters are code points after NFC. The space between words is one, unless the language is written without.
    """
    reference, hypothesis = normaliser(reference), normaliser(hypothesis)
    if normaliser.unspaced:
        reference, hypothesis = reference.replace(" ", ""), hypothesis.replace(" ", "")
    if not reference or not hypothesis:
        return CharacterCounts(len(reference), len(reference) + len(hypothesis))

    edits = jiwer.process_characters(reference, hypothesis)
    return CharacterCounts(len(reference), edits.substitutions + edits.deletions + edits.insertions)


def script_counts(text: str, normaliser: Normaliser) -> ScriptCounts:
    """Words of the normalised text by script: tells Uzbek in Latin letters from Uzbek in Cyrillic ones.

    A word belongs to a script if all its letters do. Digits, marks and modifier letters (the ʻ of oʻ) belong to none.
    """
    words = [_scripts(word) for word in normaliser(text).split()]
    latin, cyrillic = words.count({"LATIN"}), words.count({"CYRILLIC"})
    return ScriptCounts(latin, cyrillic, len(words) - latin - cyrillic)


def _scripts(word: str) -> set[str]:
    """First words of the Unicode names of its letters, which for these two are the script."""
    letters = (char for char in word if unicodedata.category(char) in ("Ll", "Lu", "Lt", "Lo"))
    return {unicodedata.name(letter, "").split(" ")[0] for letter in letters}


def _english(text: str) -> str:
    words = _whisper_english()(_INNER_APOSTROPHE.sub("'", text)).split()
    return " ".join(word for word in words if any(char.isalnum() for char in word))


@functools.cache
def _whisper_english() -> Callable[[str], str]:
    """Built on first use: its tables of spellings and numbers take a while to load."""
    from whisper_normalizer.english import EnglishTextNormalizer

    return EnglishTextNormalizer()


def _basic(text: str, *, language: str, strip_diacritics: bool) -> str:
    """Composed, case-folded words of letters, digits and combining marks, one space apart. Idempotent.

    Punctuation and symbols of every script become spaces, apostrophes too: "d'accès" is two words on both
    sides. Only Uzbek keeps the apostrophe, where it is part of a letter (oʻ, gʻ) or sits inside a word
    (maʼno): all its spellings become one. Combining marks never end a word.
    """
    text = unicodedata.normalize("NFC", _drop_invisible(text))
    if language in _TURKIC_CASING:
        text = text.translate(_TURKIC_I)
    text = unicodedata.normalize("NFC", text.casefold())
    if language in _TURKIC_CASING:
        text = unicodedata.normalize("NFC", _DOTTED_I.sub("i", text))
    while language == "ru" and "ё" in text:  # until no mark behind an е makes it one again
        text = unicodedata.normalize("NFC", text.replace("ё", "е"))
    if strip_diacritics:
        text = _strip_diacritics(text)
    text = text.translate(_APOSTROPHES)
    if language == "uz":
        text = _UZBEK_APOSTROPHE.sub(_UZBEK_LETTER, text)
    return _words_only(text)


def _basic_characters(text: str, **options) -> str:
    """`_basic` with one space between characters; a combining mark stays with the character before it."""
    text = _basic(text, **options)
    spaced = (char if unicodedata.category(char)[0] == "M" else " " + char for char in text)
    return " ".join("".join(spaced).split())


def _drop_invisible(text: str) -> str:
    """Remove joiners, bidi marks, soft hyphens and variation selectors; they do not separate words.

    The zero-width space does, and becomes a space.
    """
    text = text.replace("\u200b", " ")
    return "".join(c for c in text if unicodedata.category(c) != "Cf" and not "\ufe00" <= c <= "\ufe0f")


def _strip_diacritics(text: str) -> str:
    """Drop marks with combining class 10..36 (Hebrew, Arabic, Syriac points) or >= 200 (accents).

    Vowel signs of Indic scripts, Thai vowels and tones and the kana voicing marks have other classes and
    stay: without them the word is another word. Classes: Unicode Standard, table 4-3.
    """

    def is_diacritic(char: str) -> bool:
        combining_class = unicodedata.combining(char)
        return 10 <= combining_class <= 36 or combining_class >= 200

    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not is_diacritic(c)))


def _words_only(text: str) -> str:
    """Replace what is neither letter, mark nor number by a space; drop marks left without a base letter."""
    kept = []
    for char in text:
        kind = unicodedata.category(char)[0]
        if kind in "LN" or (kind == "M" and kept and kept[-1] != " "):
            kept.append(char)
        elif kind != "M":
            kept.append(" ")
    return " ".join("".join(kept).split())
