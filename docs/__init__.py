"""The documentation; a package, so that `docs.site` is found here."""
