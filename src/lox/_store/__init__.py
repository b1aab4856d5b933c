"""The store: the on-disk format of runs, its reader and its writer."""
