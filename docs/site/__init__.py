"""Code that only the documentation site needs: figures, directives and checks."""
