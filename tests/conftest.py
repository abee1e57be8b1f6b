"""Real models, shared by every test that needs one."""

import pytest

from pyharness import models


@pytest.fixture(scope="session")
def tiny_en():
    """Path of tiny.en (English, f16)."""
    return models.get("tiny.en")


@pytest.fixture(scope="session")
def base():
    """Path of base (multilingual, f16)."""
    return models.get("base")
