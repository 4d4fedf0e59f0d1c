"""The command `paddle-resume`. Nothing imports it; it may import everything."""
