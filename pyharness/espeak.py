"""Synthetic speech: the sentences in ``sentences/``, read by espeak-ng.

A stand-in for languages whose human recordings cannot be had offline. It compares arms, it states no accuracy.
espeak-ng is used if the system has it, else it is fetched as a Debian package for the length of the call.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import soundfile

from pyharness import audio, debian
from pyharness.errors import HarnessError

SENTENCES = Path(__file__).with_name("sentences")  # XX.txt: one sentence per line
LICENCE = "CC0 (sentences written for padsink)"
TUTUQ = "\u02bc"  # espeak-ng knows no such letter and spells the whole word; left out, the word is read


@dataclass(frozen=True)
class EspeakSource:
    """The sentences of one language. ``fetch`` follows ``speech.Source``."""

    language: str  # ISO 639-1; espeak-ng's voices have the same names

    def fetch(self, folder: Path) -> tuple[list[dict], dict[str, int]]:
        """Write one 16-bit FLAC per sentence; the same program writes the same bytes every time."""
        with tempfile.TemporaryDirectory(prefix="padsink-") as temporary:
            program = find_program(Path(temporary))
            wav = Path(temporary) / "sentence.wav"
            rows = []
            for number, sentence in enumerate(read_sentences(self.language), start=1):
                program.speak(sentence.replace(TUTUQ, ""), self.language, wav)
                target = folder / f"{self.language}-{number:03}.flac"
                samples = audio.load(wav)
                soundfile.write(target, samples, audio.SAMPLE_RATE, subtype="PCM_16")
                rows.append(self._row(sentence, target, len(samples), program.version))
            return rows, {"kept": len(rows)}

    def _row(self, sentence: str, file: Path, n_samples: int, version: str) -> dict:
        return {
            "id": file.stem,
            "audio": file,
            "text": sentence,
            "language": self.language,
            "duration": round(n_samples / audio.SAMPLE_RATE, 3),
            "speaker": f"espeak-ng {self.language}",
            "source": f"espeak-ng {version}",
            "licence": LICENCE,
            "synthetic": True,
        }


def read_sentences(language: str) -> list[str]:
    lines = (SENTENCES / f"{language}.txt").read_text(encoding="utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]


# --- the program ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """An espeak-ng that can be run."""

    path: Path
    variables: dict[str, str] = field(default_factory=dict)  # environment that lets it find its parts

    @property
    def version(self) -> str:
        """``1.51`` from ``eSpeak NG text-to-speech: 1.51  Data at: ...``."""
        output = self._run(["--version"], "")
        return output.partition(":")[2].split()[0] if ":" in output else "of unknown version"

    def speak(self, text: str, voice: str, wav: Path) -> None:
        """Write the spoken text: 16 bit, 22.05 kHz."""
        wav.unlink(missing_ok=True)  # a file left over would pass for this sentence
        self._run(["-v", voice, "-b", "1", "--stdin", "-w", str(wav)], text)  # -b 1: the text is UTF-8
        if not wav.is_file():
            raise HarnessError(f"espeak-ng wrote no audio for '{text}' in voice '{voice}'")

    def _run(self, arguments: list[str], text: str) -> str:
        command = [str(self.path), *arguments]
        environment = {**os.environ, **self.variables}
        try:
            result = subprocess.run(command, input=text.encode(), env=environment, capture_output=True)
        except OSError as error:
            raise HarnessError(f"cannot start '{self.path}': {error.strerror}") from error
        if result.returncode:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {result.returncode}"
            raise HarnessError(f"'{' '.join(command)}' failed: {reason}")
        return result.stdout.decode(errors="replace")


def find_program(folder: Path) -> Program:
    """The system's espeak-ng, or one unpacked into ``folder``."""
    installed = shutil.which("espeak-ng")
    if installed:
        return Program(Path(installed))
    instead = "install espeak-ng with your package manager"
    debian.require_tools("espeak-ng is not installed, and to fetch it from Debian pyharness would", instead)
    try:
        return _unpacked(debian.unpack(debian.download_program("espeak-ng", folder), folder))
    except HarnessError as error:
        raise HarnessError(f"espeak-ng is not installed and could not be fetched: {error}. Or {instead}") from error


def _unpacked(root: Path) -> Program:
    """espeak-ng below ``root``, with the libraries and the voices that lie there."""
    path, voices = root / "usr/bin/espeak-ng", next(root.rglob("espeak-ng-data/phontab"), None)
    if not path.is_file() or voices is None:
        raise HarnessError("the package lacks usr/bin/espeak-ng or its voices")
    libraries = sorted({str(file.parent) for file in root.rglob("*.so*")})
    inherited = os.environ.get("LD_LIBRARY_PATH")
    search = ":".join([*libraries, inherited] if inherited else libraries)
    return Program(path, {"LD_LIBRARY_PATH": search, "ESPEAK_DATA_PATH": str(voices.parent.parent)})
