"""Every test of a tracker runs in an empty directory."""

import pytest


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
