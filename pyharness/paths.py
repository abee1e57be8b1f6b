"""Where things live: the user's cache and the native build."""

import os
from pathlib import Path

import platformdirs

REPOSITORY = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """Folder for models and speech: ``$PADSINK_HOME``, else the platform's user cache folder."""
    home = os.environ.get("PADSINK_HOME")
    return Path(home).expanduser() if home else Path(platformdirs.user_cache_dir("padsink"))


def models_dir() -> Path:
    return cache_dir() / "models"


def speech_dir() -> Path:
    return cache_dir() / "speech"
