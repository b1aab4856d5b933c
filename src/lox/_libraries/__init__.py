"""Support for libraries, loaded only if they are imported."""
