"""The promises under fire: faults made on purpose, and an oracle outside that knows the truth.

  python -m tests.campaign --size ci|night|release [--seed N] [--parts a,b] [--scratch DIR]
                           [--json FILE] [--count N] [--minutes N] [--jobs N] [--write-readme]

  frame      what a part is; each runs in a process of its own     needs     what a machine has
  report     the table, the JSON, README's section                 parts     the list of all parts
  ground     one workspace, its store, and everything around them that must not change
  worker     a process that runs every command, and tells the oracle before and after
  oracle     the judge: what was written and acknowledged, and whether it is still so
  gitreader  a store as git and a few lines of our own see it      child     forked children
  tracer     a child stopped before its nth system call            volume    disks to cut off
  blocklog   a disk that writes down every write and every flush

The other modules are parts. Everything takes place in one scratch directory, in mount namespaces of
our own and on loop devices that go with them. A part whose needs this machine does not meet says so
and counts as not run. The same seed draws the same work; what the kernel makes of it may differ.
"""
