"""JAX's private and version-dependent API.

No other package imports `jax._src` or changes JAX's rule tables, so that only this
package has to change with a JAX release.
"""

# imported first: `early_patches` needs a JAX that is completely imported
import jax as jax
