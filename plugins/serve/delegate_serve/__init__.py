"""A server for programs of delegate: the open inference protocol over HTTP, with dynamic batching and metrics."""
