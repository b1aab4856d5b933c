"""What only the documentation site needs: pictures, directives and checks."""
