"""lox beside its peers: the same work, done by each of them, timed in turns.

`python -m benchmarks peers` (or `python -m benchmarks.peers`) prints a table and writes
a file in JSON, from which `docs.site.peer_results` makes a page and its pictures.

- `works`: what is done, written once. A program receives `Tools`, through which it
  logs and loops, and has a version in which the values are returned by hand.
- `contenders`: a file per kind of peer. A peer makes a function of a work.
- `checking`, `turns`, `group`: values are compared with those returned by hand, and
  only then timed, in turns, in one process per group.
- `results`, `table`, `command`: JSON, text, and the command line.

No module imports lox or a peer when it is imported: a peer that is missing, or that
does not run with this version of JAX, is a row of the table.
"""
