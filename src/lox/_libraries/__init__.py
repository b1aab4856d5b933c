"""Support for other libraries, active only if the user imports them."""
