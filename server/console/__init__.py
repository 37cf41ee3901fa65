"""The console: a static page in which a browser shows and steers a server over its public API."""
