"""What is carried through a program instead of its rows."""
