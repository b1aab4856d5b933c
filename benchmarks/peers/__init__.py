"""Compares lox with other libraries, which do the same work in interleaved rounds.

`python -m benchmarks peers` (or `python -m benchmarks.peers`) prints a table and writes
a JSON file, from which `docs.site.peer_results` generates a page and its figures.

- `workloads`: the programs, written once. A program receives `Tools`, through which it
  logs and loops, and has a version in which the values are returned by hand.
- `contenders`: one file per kind of peer. A peer creates a function from a workload.
- `checking`, `rounds`, `group`: values are compared with those returned by hand, and
  only then timed, in interleaved rounds, in one process per group.
- `results`, `table`, `command`: JSON, text, and the command line.

No module imports lox or a peer when it is imported: a peer that is missing, or that
does not run with this version of JAX, is a row of the table.
"""
