"""The parts of a training's state, one component a file; each copies itself out and back in."""
