"""Properties are drawn anew at every run, except in CI, where every run draws the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from scenarios.files.trusted import PLUGINS

settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture
def trusts_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scenarios run the policies that a test writes, as ``--plugins`` does."""
    monkeypatch.setenv(PLUGINS, str(tmp_path))
