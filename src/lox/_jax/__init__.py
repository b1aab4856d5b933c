"""JAX's private and versioned side."""
