"""Power cuts, kills and a soak: the store's promise, by breaking the machine under it."""
