"""JAX's private and versioned side.

No other package imports `jax._src` or touches a table of JAX's rules: the others would
survive a release of JAX.
"""

# before any module here: once it is imported, `early_patches` needs them whole
import jax as jax
