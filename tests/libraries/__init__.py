"""Tests with other JAX libraries."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.recording")
