"""`lox report` and `lox serve`."""

import argparse
import webbrowser

import pytest

import lox
from lox.cli import report, serve
from tests.page.stores import write_seeds


def call(command, *arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def opened(monkeypatch):
    urls = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    return urls


def test_report_writes_a_file_and_prints_its_path(tmp_path, capsys, opened):
    write_seeds(tmp_path / "store", seeds=1)
    path = tmp_path / "x.html"
    store = str(tmp_path / "store")
    assert call(report, store, "-o", str(path), "--open") == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text().startswith("<!doctype html>")
    assert opened == [path.as_uri()]
    with pytest.raises(lox.LoxValueError, match="exists"):
        call(report, store, "-o", str(path))
    assert call(report, store, "-o", str(path), "--overwrite", "-x", "accuracy") == 0


def test_serve_prints_its_url_and_ends_with_an_interrupt(tmp_path, capsys, monkeypatch):
    def interrupt(url):
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", interrupt)
    assert call(serve, str(tmp_path), "--port", "0", "--open") == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_missing_store_is_an_error(tmp_path):
    for command in (report, serve):
        with pytest.raises(lox.StoreError, match="there is no store at"):
            call(command, str(tmp_path / "missing"))
