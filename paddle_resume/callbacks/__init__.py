"""Callbacks for `paddle.Model.fit`, one class a file."""
