"""The server: models, requests, batching, HTTP and metrics. It never imports torch."""
