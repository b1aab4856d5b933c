"""Every test of `lox sync` to a tracker runs in an empty directory."""

import pytest

from .memory import server as server


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
