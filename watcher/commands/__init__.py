"""One small file per command, each exposing one click command as `command`; cli has the table."""
