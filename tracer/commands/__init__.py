"""The commands of `ttft`, one file per kind."""
