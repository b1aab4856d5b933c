"""Programs that are forked behave like programs that start Python."""

import os
import signal

import pytest

from . import programs

PROGRAMS = {
    "result": "print('out')",
    "error": "raise ValueError('mine')",
    "code": "import sys; print('err', file=sys.stderr); sys.exit(7)",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os; os.kill(os.getpid(), 9)",
    "hooks": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": """
        import threading
        main = threading.main_thread()
        threading.Thread(target=lambda: (main.join(), print('after'))).start()
        print('before')
    """,
    "main": """
        import __main__, sys
        x = 1
        print(__name__, __main__.x, sys.argv, sys.path[0] == '')
    """,
    "files": """
        import sys
        print(repr(sys.stdin.read()), sys.stdout.isatty())
        sys.stderr.close()
    """,
    "children": """
        import os
        if os.fork() == 0:
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "signals": """
        import signal
        for name in ('SIGINT', 'SIGTERM', 'SIGCHLD', 'SIGPIPE'):
            print(signal.getsignal(getattr(signal, name)))
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_forked_program_exits_and_prints_like_a_fresh_one(name):
    forked = programs.run(PROGRAMS[name], "a", 2)
    fresh = programs.run(PROGRAMS[name], "a", 2, fresh=True)
    assert (forked.returncode, forked.stdout) == (fresh.returncode, fresh.stdout)
    assert forked.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


@pytest.mark.parametrize("fresh", [False, True])
def test_program_has_its_own_directory_environment_and_files(
    tmp_path, monkeypatch, fresh
):
    monkeypatch.chdir(tmp_path)
    program = """
        import os, sys
        print(os.getcwd(), os.environ["MINE"], flush=True)
        os.write(int(sys.argv[1]), sys.stdin.readline().encode())
    """
    read, write = os.pipe()
    with programs.start(
        program,
        write,
        env={**os.environ, "MINE": "yes"},
        stdin=programs.PIPE,
        pass_fds=(write,),
        fresh=fresh,
    ) as process:
        os.close(write)
        assert process.stdout.readline() == f"{tmp_path} yes\n"
        assert process.poll() is None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.communicate() == ("", "")
    assert process.returncode == process.wait() == 0
    with os.fdopen(read) as file:
        assert file.read() == "hello\n"


@pytest.mark.parametrize("fresh", [False, True])
def test_program_that_waits_can_be_killed(fresh):
    program = "print('ready', flush=True); input()"
    with programs.start(program, stdin=programs.PIPE, fresh=fresh) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert process.wait() == -signal.SIGKILL
