"""The traversal of programs that log. Importing a module registers its rules."""

from . import (
    custom_functions as custom_functions,
    custom_vmap as custom_vmap,
    kept_derivatives as kept_derivatives,
    linen as linen,
    recomputation as recomputation,
    rules as rules,
    type_rules as type_rules,
)
from .equinox_primitives import (
    filtered as filtered,
    lineax as lineax,
    noinline as noinline,
)
from .library_loops import masking as masking
from .patches import table as table
