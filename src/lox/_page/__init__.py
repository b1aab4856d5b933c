"""The page that shows the runs of a store: as a file, live, and in notebooks."""
