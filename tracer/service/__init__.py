"""The daemon as a service: installing it, and what it tells systemd."""
