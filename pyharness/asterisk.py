"""Speech from Debian: the Asterisk voice prompts, one studio speaker per language, with transcripts.

``asterisk-core-sounds-XX`` holds the transcripts, ``asterisk-core-sounds-XX-g722`` the audio (16 kHz). They
are fetched by ``debian``, without root.

The transcripts were written for the voice artist, not for scoring, so prompts whose exact spoken words the
text does not fix are dropped. ``LIST_FILTERS``, ``TEXT_FILTERS`` and ``AUDIO_FILTERS`` name the reasons in
the order in which they are tried; a prompt is counted under the first that applies.
"""

import gzip
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from rich.console import Console
from rich.progress import track

from pyharness import audio, debian
from pyharness.errors import HarnessError

VERSION = "1.6.1-1"
ALLOW_OTHER = "PADSINK_ALLOW_OTHER_SPEECH"
SHA256 = {  # of the .deb files that the published results used
    "asterisk-core-sounds-en": "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
    "asterisk-core-sounds-en-g722": "38c5261820b406dcb0ecb37675720da2b0864850690690352ca52707eb623806",
    "asterisk-core-sounds-es": "9afdab7f559f036649fb406e625899306ca1004df8ebe39c30bfbd5912d66f74",
    "asterisk-core-sounds-es-g722": "e4e3b4281057d3b81b779298fd6be705f57411513955c518eed1bcaabbd615b8",
    "asterisk-core-sounds-fr": "04c82c78c570c43a7136cbc5e2488d0c470b775468dff9fbce4a131b18cf1056",
    "asterisk-core-sounds-fr-g722": "7add61d5e42279ecff1bbdf842a5a946ac3644fac9a0fe44384731aa7270c8e0",
    "asterisk-core-sounds-it": "3884d9457e12f21caa018c18f0d587df5d53ebea14b673d8453a134c5941ab3b",
    "asterisk-core-sounds-it-g722": "46b4cf7afc508a5fcfc051b7ea233251c0d195dd4ef83cc4b7facb4c6429b016",
    "asterisk-core-sounds-ru": "28a61616bb0cd3345a7ea532dec4df9f071e5d0fa9f8c1a563ea9669002f39ab",
    "asterisk-core-sounds-ru-g722": "673b4238a6b8269960f055d868c6a11083f7a0d00979167cb01554046b48ed9b",
}

SHORTEST, LONGEST = 0.3, 30.0  # seconds; Whisper's window is 30 s
FASTEST = 18.5  # letters per second; complete readings stay below, half-spoken transcripts lie above


@dataclass(frozen=True)
class Prompt:
    """One line of a transcript file."""

    language: str
    key: str  # path of the recording without suffix, e.g. "dictate/pause"
    text: str


@dataclass(frozen=True)
class AsteriskSource:
    """The prompts of one language. ``fetch`` follows ``speech.Source``."""

    language: str
    voice: str  # folder of the recordings, used as speaker id
    licence: str  # as in the packages' copyright file

    @property
    def package(self) -> str:
        return f"asterisk-core-sounds-{self.language}"

    def fetch(self, folder: Path) -> tuple[list[dict], dict[str, int]]:
        """Download, filter, and write one 16-bit FLAC per kept prompt below ``folder``."""
        with tempfile.TemporaryDirectory(prefix="padsink-") as temporary:
            version, root = download([self.package, f"{self.package}-g722"], Path(temporary))
            return self.convert(root, folder, version)

    def convert(self, root: Path, folder: Path, version: str = VERSION) -> tuple[list[dict], dict[str, int]]:
        """The same from packages already unpacked below ``root``."""
        transcripts = root / "usr/share/doc" / self.package / f"core-sounds-{self.language}.txt.gz"
        voice = root / "usr/share/asterisk/sounds" / self.voice
        if not transcripts.is_file() or not voice.is_dir():
            raise HarnessError(f"package {self.package} {version} lacks '{transcripts}' or '{voice}'")
        prompts, counts = filter_texts(parse(transcripts, self.language))
        rows: list[dict] = []
        seen: set[tuple[str, str]] = set()
        for prompt in _progress(prompts, f"decoding {self.package}"):
            recording = voice / f"{prompt.key}.g722"
            samples = _decode(recording)
            reason = audio_problem(prompt, recording, samples, seen)
            if reason:
                counts[reason] += 1
                continue
            target = folder / f"{prompt.key}.flac"
            target.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(target, samples, audio.SAMPLE_RATE, subtype="PCM_16")
            rows.append(self._row(prompt, target, len(samples), version))
        return rows, {"kept": len(rows)} | {name: counts[name] for name in FILTERS}

    def _row(self, prompt: Prompt, file: Path, n_samples: int, version: str) -> dict:
        return {
            "id": prompt.key,
            "audio": file,
            "text": prompt.text,
            "language": self.language,
            "duration": round(n_samples / audio.SAMPLE_RATE, 3),
            "speaker": self.voice,
            "source": f"Debian {self.package} {version}",
            "licence": self.licence,
            "synthetic": False,
        }


SOURCES = {
    source.language: source
    for source in (
        AsteriskSource("en", "en_US_f_Allison", "CC-BY-SA-3.0"),
        AsteriskSource("es", "es_MX_f_Allison", "CC-BY-SA-3.0"),
        AsteriskSource("fr", "fr_CA_f_June", "CC-BY-SA-3.0"),
        AsteriskSource("it", "it_IT_m_Carlo", "CC-BY-3.0"),
        AsteriskSource("ru", "ru_RU_f_IvrvoiceRU", "CC-BY-3.0"),
    )
}


# --- transcripts ------------------------------------------------------------------------------------------


def parse(path: Path, language: str) -> list[Prompt]:
    """All ``key: text`` lines of a gzipped transcript file; undecodable bytes become U+FFFD."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8-sig", errors="replace")
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith(";")]
    return [_prompt(line, language) for line in lines]


def _prompt(line: str, language: str) -> Prompt:
    key, _, text = line.partition(":")
    return Prompt(language, key.strip(), " ".join(text.split()))


def filter_texts(prompts: list[Prompt]) -> tuple[list[Prompt], Counter]:
    """Prompts whose text can serve as reference, in order, and how many each filter dropped."""
    texts_of_key: dict[str, set[str]] = {}
    for prompt in prompts:
        texts_of_key.setdefault(prompt.key, set()).add(prompt.text)
    kept, counts = [], Counter()
    for prompt in prompts:
        reason = "two_texts" if len(texts_of_key[prompt.key]) > 1 else text_problem(prompt)
        if reason:
            counts[reason] += 1
        else:
            kept.append(prompt)
    return kept, counts


def text_problem(prompt: Prompt) -> str | None:
    """Name of the first text filter that drops the prompt."""
    return next((name for name, drops in TEXT_FILTERS.items() if drops(prompt)), None)


SOUNDS = re.compile(r"silence/.*|(a|de)scending-2tone|beep(err)?|confbridge-(join|leave)|tt-monkeys")
LETTERS = re.compile(r"letters/(\w|zed)", re.IGNORECASE)
ACRONYMS = re.compile(r"spy-(dahdi|h323|iax|iax2|mgcp|misdn|nbs|sip|unistim|usbradio|zap)")
# The recording says other words than the text. Found by comparing the texts with what Whisper base hears; listed
# where it heard, twice, another wording that makes sense ("voce disattivata" for "ora sei muto"), never where it
# only misheard. Two are wrong on sight: fr h-80 has the text of h-70, it "is" is English. Nothing was found in
# English. digits/ and phonetic/ were not compared.
MISTAKES: dict[str, re.Pattern] = {
    "es": re.compile(r"dictate/both_help|letters/exclaimation-point|vm-nomore"),
    "fr": re.compile(
        r"digits/h-80|followme/status|please-try-call-later|second|sorry-youre-having-problems"
        r"|speed-dial-empty|to-extension|vm-rec-(name|unv)"
    ),
    "it": re.compile(
        r"conf-(muted|placeintoconf)|confbridge-(mute-in|mute-out|only-one)|is|please-try-call-later"
        r"|queue-(thankyou|thereare)|vm-(INBOX|nobodyavail|Old|rec-temp|rec-unv|sorry|tempgreetactive|then-pound)"
    ),
    "ru": re.compile(r"confbridge-rest-talk-vol-out"),
}


def _names(keys: re.Pattern) -> Callable[[Prompt], bool]:
    return lambda prompt: keys.fullmatch(prompt.key) is not None


def _contains(pattern: str) -> Callable[[Prompt], bool]:
    compiled = re.compile(pattern)
    return lambda prompt: compiled.search(prompt.text) is not None


def _lost_letter(prompt: Prompt) -> bool:
    """U+FFFD, or a "?" that does not end a sentence: "non pu? essere", "conferenza ? piena"."""
    letters_after = re.findall(r"\?\s*(\w)", prompt.text)
    return "\ufffd" in prompt.text or any(map(str.islower, letters_after))


def _is_mistake(prompt: Prompt) -> bool:
    known = MISTAKES.get(prompt.language)
    return known is not None and known.fullmatch(prompt.key) is not None


LIST_FILTERS = {"two_texts": "the key is listed with different texts"}
TEXT_FILTERS: dict[str, Callable[[Prompt], bool]] = {
    # nothing to compare with
    "no_text": lambda prompt: not prompt.text,
    # sounds instead of words
    "not_speech": _names(SOUNDS),
    # names of single letters
    "letter": _names(LETTERS),
    # names of telephone channel drivers: read letter by letter or as a word, the text does not say
    "acronym": _names(ACRONYMS),
    # a letter that was lost on the way to UTF-8
    "lost_letter": _lost_letter,
    # directions to the voice artist, alternatives, remarks
    "brackets": _contains(r"[\[\](){}<>]"),
    # another prompt was appended to the line
    "merged_lines": _contains(r"\b[a-z]+(-[a-z0-9]+)+: "),
    # nothing but digits
    "only_digits": _contains(r"^[\W_]*\d[\d\W_]*$"),
    # digits among words: which words were spoken is unknown
    "digits": _contains(r"\d"),
    # a sign whose spoken form is unknown, or a web address
    "signs": _contains(r"[*#/@&+=%$\\|_^~]|www\."),
    # Latin and Cyrillic letters in one word
    "mixed_script": _contains(r"[A-Za-z][а-яёА-ЯЁ]|[а-яёА-ЯЁ][A-Za-z]"),
    # known to be wrong
    "mistake": _is_mistake,
}


# --- audio ------------------------------------------------------------------------------------------------

AUDIO_FILTERS = {
    "no_audio": "there is no recording, or it is empty",
    "too_short": f"shorter than {SHORTEST} s",
    "too_long": f"longer than {LONGEST} s",
    "half_spoken": f"more than {FASTEST} letters per second: part of the text is not in the recording",
    "duplicate": "same text and same recording as an earlier prompt",
}
FILTERS = [*LIST_FILTERS, *TEXT_FILTERS, *AUDIO_FILTERS]


def audio_problem(prompt: Prompt, recording: Path, samples: np.ndarray, seen: set[tuple[str, str]]) -> str | None:
    """Name of the audio filter that drops the prompt; ``seen`` collects (text, hash) of those that pass."""
    seconds = len(samples) / audio.SAMPLE_RATE
    if not seconds:
        return "no_audio"
    if seconds < SHORTEST:
        return "too_short"
    if seconds > LONGEST:
        return "too_long"
    if sum(map(str.isalpha, prompt.text)) > FASTEST * seconds:
        return "half_spoken"
    content = (prompt.text, _sha256(recording))
    if content in seen:
        return "duplicate"
    seen.add(content)
    return None


def _decode(recording: Path) -> np.ndarray:
    """Samples f32 ``[n]`` at 16 kHz; none if the file is missing or empty (the Russian ``is`` is)."""
    if not recording.is_file() or not recording.stat().st_size:
        return np.zeros(0, np.float32)
    return audio.load(recording)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _progress(items: list, description: str):
    console = Console(stderr=True)
    return track(items, description, console=console, transient=True, disable=not console.is_terminal)


# --- packages ---------------------------------------------------------------------------------------------


def download(packages: list[str], folder: Path) -> tuple[str, Path]:
    """Version of the packages and the folder below ``folder`` into which they were unpacked."""
    _require_tools()
    archives = debian.download(packages, folder)
    for package, archive in archives.items():
        _check_archive(package, archive)
    return debian.version(archives[packages[0]]), debian.unpack(archives.values(), folder)


def _require_tools() -> None:
    instead = "fetch the set on Debian or Ubuntu and copy its folder, or use your own manifest"
    debian.require_tools("the Asterisk prompts are Debian packages and", instead)


def _check_archive(package: str, archive: Path) -> None:
    """Results are comparable only on the same recordings, so anything else must be asked for."""
    if _sha256(archive) == SHA256[package]:
        return
    difference = f"{package} {debian.version(archive)} is not the {VERSION} that the published results used"
    if os.environ.get(ALLOW_OTHER) != "1":
        raise HarnessError(f"{difference} (sha256 differs): set {ALLOW_OTHER}=1 to use it anyway")
    print(f"Warning: {difference}; your numbers may differ", file=sys.stderr)
