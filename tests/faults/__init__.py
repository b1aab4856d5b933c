"""Kills, damage, full disks, failing trackers and long runs, many times over."""
