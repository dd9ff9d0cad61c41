"""Makes what is handed out: libraries for the wheel, the Debian package, the bundle."""
