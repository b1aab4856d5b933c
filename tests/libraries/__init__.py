"""Tests with the libraries that people use lox with."""
