"""`lox report` and `lox serve`."""

import argparse
import socket
import webbrowser

import pytest

import lox
import lox.cli
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
    with pytest.raises(lox.LoxValueError, match="exists; `--force` replaces it"):
        call(report, store, "-o", str(path))
    for option in ("--force", "--overwrite"):
        assert call(report, store, "-o", str(path), option, "-x", "accuracy") == 0
    nowhere = str(tmp_path / "no" / "x.html")
    with pytest.raises(lox.LoxValueError, match="there is no directory"):
        call(report, store, "-o", nowhere)


def test_report_needs_a_store_with_runs(tmp_path):
    path = tmp_path / "x.html"
    path.write_text("")  # its store is checked first
    with pytest.raises(lox.StoreError, match="there is no store at .*nothere"):
        call(report, str(tmp_path / "nothere"), "-o", str(path))
    with pytest.raises(lox.StoreError, match="there are no runs in"):
        call(report, str(tmp_path), "-o", str(path))


def test_store_of_report_is_that_of_the_environment(tmp_path, capsys, monkeypatch):
    write_seeds(tmp_path / "store", seeds=1)
    monkeypatch.setenv("LOX_STORE", str(tmp_path / "store"))
    assert call(report, "-o", str(tmp_path / "x.html")) == 0
    monkeypatch.delenv("LOX_STORE")
    monkeypatch.chdir(tmp_path / "store")
    assert call(report, "-o", str(tmp_path / "y.html")) == 0
    assert (tmp_path / "x.html").exists() and (tmp_path / "y.html").exists()


def test_serve_prints_its_url_and_ends_with_an_interrupt(tmp_path, capsys, monkeypatch):
    def interrupt(url):
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", interrupt)
    assert call(serve, str(tmp_path), "--port", "0", "--open") == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_invalid_port_is_refused(capsys, port):
    assert lox.cli.main(["serve", "store", "--port", port]) == 2
    assert "is not a number from 0 to 65535" in capsys.readouterr().err


def test_port_in_use_is_an_error(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert lox.cli.main(["serve", str(tmp_path), "--port", port]) == 1
    captured = capsys.readouterr()
    assert f"cannot listen on 127.0.0.1, port {port}" in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


def test_missing_store_is_an_error(tmp_path):
    for command in (report, serve):
        with pytest.raises(lox.StoreError, match="there is no store at"):
            call(command, str(tmp_path / "missing"))
