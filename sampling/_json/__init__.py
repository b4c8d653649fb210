"""Reading JSON that comes from strangers: bounded in depth and size, and out of the prose around it."""
