"""The transformations: `spool`, `tap`, `nolog`."""
