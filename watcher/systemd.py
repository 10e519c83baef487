"""What init systems want: sd_notify messages, and the files that make them start the service."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape


class Notifier:
    """Owns the way to the init system, if there is one; nothing depends on it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        path = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog = self._address != "" and env.get("WATCHDOG_USEC", "").isdecimal()

    def say(self, **states: str) -> None:
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in states.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            try:
                link.sendto(text.encode(), self._address)
            except OSError:
                self._address = ""


SYSTEMD = """\
# ~/.config/systemd/user/turnmark.service; then: systemctl --user enable --now turnmark
# To keep it running while you are logged out: loginctl enable-linger
[Unit]
Description=turnmark: snapshots of what agents do to your files

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
WatchdogSec=60
TimeoutStopSec=15
UMask=0077

[Install]
WantedBy=default.target
"""
LAUNCHD = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- ~/Library/LaunchAgents/turnmark.plist; then: launchctl bootstrap gui/$UID FILE -->
<plist version="1.0">
<dict>
  <key>Label</key><string>turnmark</string>
  <key>ProgramArguments</key>
  <array>
{arguments}
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ProcessType</key><string>Background</string>
  <key>Umask</key><integer>63</integer>
  <key>StandardErrorPath</key><string>{log}</string>
</dict>
</plist>
"""


def unit(kind: str, command: Sequence[str], log: str) -> str:
    if kind == "launchd":
        rows = "\n".join(f"    <string>{escape(word)}</string>" for word in command)
        return LAUNCHD.format(arguments=rows, log=escape(log))
    # In a unit file % begins a specifier and $ a variable.
    words = shlex.join(command).replace("%", "%%").replace("$", "$$")
    return SYSTEMD.format(command=words)
