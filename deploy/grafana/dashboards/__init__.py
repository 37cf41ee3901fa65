"""One module per dashboard; `panels` and `frame` hold what they share."""
