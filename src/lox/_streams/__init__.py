"""Streams: interval, reduction and buffer, carried through a program."""
