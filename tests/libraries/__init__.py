"""Tests with the libraries that people use lox with."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.recording")
