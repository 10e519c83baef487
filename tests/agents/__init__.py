"""The real agents, installed by npm, driven against a scripted model on loopback."""
