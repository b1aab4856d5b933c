"""The traversal of programs that log, and its rules, which register themselves."""

from . import (
    custom_rules as custom_rules,
    derivatives as derivatives,
    foreign as foreign,
    library_loops as library_loops,
    linen as linen,
    rules as rules,
    type_rules as type_rules,
)
from .patches import table as table
